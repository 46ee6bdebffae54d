"""The node daemon's server: one request at a time per connection, answers written as they come.

A peer that closes its connection cancels the handler of its request at once. An answer that is not
ended properly is cut: the connection is closed without the end of the body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

import httptools

MAX_BODY_BYTES = 1 << 30
"""The gateway has checked its own, smaller limit; this one bounds a peer gone wrong."""

Handler = Callable[["Request"], Awaitable[None]]


class Request:
    """One request, whole, and its answer. Methods that write belong to the handler.

    Attributes:
        path: with its query.
        headers: names in lower case.
        started: the head of the answer has been sent.
    """

    __slots__ = ("_chunked", "_connection", "body", "ended", "headers", "path", "started")

    def __init__(
        self, connection: _Connection, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        self._connection = connection
        self._chunked = False
        self.path = path
        self.headers = headers
        self.body = body
        self.started = False
        self.ended = False

    def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole answer."""
        head = _head(status, headers, f"Content-Length: {len(body)}")
        self.started = self.ended = True
        self._connection.write([head, body])

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer that comes in pieces."""
        self.started = True
        self._connection.write([_head(status, headers, "Transfer-Encoding: chunked")])

    def send_now(self, chunk: bytes) -> None:
        """Send a piece, however much the peer has still to take."""
        self._connection.write([b"%x\r\n" % len(chunk), chunk, b"\r\n"])

    async def send(self, chunk: bytes) -> None:
        """Send a piece; waits while the peer does not take it."""
        self.send_now(chunk)
        await self._connection.drain()

    def end(self) -> None:
        """The answer is complete."""
        self.ended = True
        self._connection.write([b"0\r\n\r\n"])

    def cut(self) -> None:
        """End the answer visibly unfinished, after what was sent."""
        self.ended = True
        self._connection.close()


class _Connection(asyncio.Protocol):
    """One connection. Requests that are pipelined wait for the one before."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[Request] = []
        self._drained: asyncio.Future[None] | None = None
        self._path = ""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0

    # --- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._server.lost(self)
        # Both refer back to this object; the cycles of a burst would wait for the collector.
        self._transport = self._parser = None
        self._waiting.clear()
        self.resume_writing()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # --- httptools ------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body, self._size = "", {}, [], 0

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self.close()

    def on_message_complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(self, self._path, self._headers, body)
        if self._task is None:
            self._begin(request)
        else:
            self._waiting.append(request)

    # --------------------------------------------------------------------------------------------

    def write(self, parts: list[bytes]) -> None:
        """Send, or drop when the peer is gone (its handler is being cancelled)."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    async def drain(self) -> None:
        """Wait while the peer does not take what was sent."""
        if self._drained is not None:
            await self._drained

    def close(self) -> None:
        """Close after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        if self._transport is not None:
            self._transport.abort()

    def _begin(self, request: Request) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(request))

    async def _serve(self, request: Request) -> None:
        try:
            await self._server.handler(request)
        finally:
            self._task = None
            if not request.ended:
                self.close()
            elif self._waiting:
                self._begin(self._waiting.pop(0))


class HttpServer:
    """Listens on a Unix socket.

    Args:
        handler: answers each request; whatever it leaves unanswered is cut.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[_Connection] = set()
        self._none_left = asyncio.Event()
        self._server: asyncio.Server | None = None

    def lost(self, connection: _Connection) -> None:
        """The connection is closed."""
        self.connections.discard(connection)
        if not self.connections:
            self._none_left.set()

    async def listen(self, socket_path: str) -> None:
        """Start listening; file permissions are the caller's umask."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(
            lambda: _Connection(self), socket_path, backlog=4096
        )

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        self._none_left.clear()
        for connection in list(self.connections):
            connection.abort()
        if self.connections:
            await self._none_left.wait()
        if self._server is not None:
            await self._server.wait_closed()


def _head(status: int, headers: Mapping[str, str], length: str) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Status"
    return f"HTTP/1.1 {status} {phrase}\r\n{lines}{length}\r\n\r\n".encode("latin-1")
