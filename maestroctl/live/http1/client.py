"""A pool of keep-alive connections to one peer, and answers that are read as they come."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

import httptools

_IDLE_LIMIT_S = 3.0
"""An idle connection older than this is not used again: uvicorn, under vLLM, closes after 5 s."""
_CONNECT_LIMIT_S = 10.0
_PAUSE_BYTES = 1 << 18
"""Unread bytes of an answer at which the peer is told to wait."""


class HopError(ConnectionError):
    """The peer broke off: before its answer, or in the middle of it."""


class Response:
    """One answer. Read it to its end, or `close` it.

    Attributes:
        headers: names in lower case.
        content_length: as announced; None for a chunked answer.
    """

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_waiter",
        "complete",
        "content_length",
        "headers",
        "size",
        "status",
    )

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: HopError | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content_length: int | None = None
        self.complete = False
        self.size = 0

    @property
    def content_type(self) -> str:
        """Media type without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def readany(self) -> bytes:
        """What has come since the last call; waits for the first byte, empty at the end.

        Raises:
            HopError: the answer broke off.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        chunks, self._chunks = self._chunks, []
        if self.size >= _PAUSE_BYTES:
            self._connection.resume_reading()
        self.size = 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            HopError: the answer broke off.
        """
        parts = []
        while part := await self.readany():
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Read no further: the connection is closed unless the answer is complete."""
        if not self.complete:
            self._connection.abort()

    # --- the connection's side ------------------------------------------------------------------

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)
        if self.size >= _PAUSE_BYTES:
            self._connection.pause_reading()
        self._wake()

    def finish(self, error: HopError | None) -> None:
        if error is None:
            self.complete = True
        else:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection. Owner: the pool while idle, the response while in use."""

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._head: asyncio.Future[Response] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._reading_paused = False
        self.idle_since_s = 0.0
        self.is_closed = False

    def send(self, data: list[bytes]) -> asyncio.Future[Response]:
        """Send a request; resolved when the head of the answer is there.

        Raises:
            HopError: the peer has closed the connection meanwhile.
        """
        if self._transport is None:
            raise HopError("the peer closed the connection before it was asked")
        self._parser = httptools.HttpResponseParser(self)
        self._response = Response(self)
        self._head = asyncio.get_running_loop().create_future()
        self._transport.writelines(data)
        return self._head

    def abort(self) -> None:
        """Close at once; the peer sees it and stops."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Let the peer wait."""
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Let the peer go on."""
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    # --- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # nothing was asked: the peer is confused
            self.abort()
            return
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(HopError(f"the peer does not speak HTTP: {exc}"))
            self.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_closed = True
        self._pool.forget(self)
        response = self._response
        if response is not None and response.status and self._ends_with_connection(response):
            self._end()
        elif response is not None:
            where = "in the middle of its answer" if response.status else "without an answer"
            self._fail(HopError(f"the peer closed the connection {where}"))
        # These refer back to this object; the cycles of a burst would wait for the collector.
        self._transport = self._parser = self._head = None

    # --- httptools ------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._response is not None
        self._response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        response, head, parser = self._response, self._head, self._parser
        assert response is not None
        assert head is not None
        assert parser is not None
        response.status = parser.get_status_code()
        length = response.headers.get("content-length")
        response.content_length = int(length) if length is not None else None
        if response.status >= 200 and not head.done():
            head.set_result(response)

    def on_body(self, body: bytes) -> None:
        assert self._response is not None
        self._response.feed(body)

    def on_message_complete(self) -> None:
        assert self._response is not None
        if self._response.status < 200:  # 1xx: the answer itself is still to come
            self._response.headers.clear()
        else:
            self._end()

    # --------------------------------------------------------------------------------------------

    def _end(self) -> None:
        response, self._response = self._response, None
        assert response is not None
        response.finish(None)
        self._head = None
        if not self.is_closed and self._parser is not None and self._parser.should_keep_alive():
            self.resume_reading()
            self._pool.give_back(self)
        else:
            self.abort()

    def _fail(self, error: HopError) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.finish(error)
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)

    @staticmethod
    def _ends_with_connection(response: Response) -> bool:
        chunked = "chunked" in response.headers.get("transfer-encoding", "")
        return response.content_length is None and not chunked


class HttpPool:
    """Connections to one peer. There is no limit on them: the scheduler bounds what is in flight.

    Args:
        base_url: scheme, host and an optional path prefix; for a Unix socket any host will do.
        socket_path: Unix socket, in place of the URL's host and port.
        headers: sent with every request.
    """

    def __init__(
        self,
        base_url: str = "http://node",
        socket_path: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        parts = urlsplit(base_url)
        self._socket_path = socket_path
        self._host = parts.hostname or "node"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        fixed = {"Host": parts.netloc or "node", **(headers or {})}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._prune_timer: asyncio.TimerHandle | None = None  # set while a connection is idle

    async def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """See `request`."""
        return await self.request("POST", path, body, headers)

    async def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> Response:
        """Send a request; return when the head of its answer is there.

        Cancelling the call closes the connection, which the peer sees at once.

        Raises:
            HopError: the peer broke off before its answer.
            OSError: nobody listens there.
        """
        connection = self._take_idle() or await self._connect()
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fixed}{lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            return await connection.send([head.encode("latin-1"), body])
        except BaseException:
            connection.abort()
            raise

    def give_back(self, connection: _Connection) -> None:
        """The connection is free again."""
        connection.idle_since_s = time.monotonic()
        self._idle.append(connection)
        if self._prune_timer is None:
            self._prune_after(_IDLE_LIMIT_S)

    def close(self) -> None:
        """Close every connection, those in use too."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        if self._prune_timer is not None:
            self._prune_timer.cancel()
            self._prune_timer = None

    def forget(self, connection: _Connection) -> None:
        """The connection is closed."""
        self._all.discard(connection)

    def _prune_after(self, delay_s: float) -> None:
        self._prune_timer = asyncio.get_running_loop().call_later(delay_s, self._prune)

    def _prune(self) -> None:
        """Close what has been idle too long: after a burst nobody may ask for it again."""
        self._prune_timer = None
        self._drop_old()
        if self._idle:
            left_s = self._idle[0].idle_since_s + _IDLE_LIMIT_S - time.monotonic()
            self._prune_after(max(0.1, left_s))

    def _drop_old(self) -> None:
        oldest_s = time.monotonic() - _IDLE_LIMIT_S
        while self._idle and self._idle[0].idle_since_s <= oldest_s:
            self._idle.popleft().abort()

    def _take_idle(self) -> _Connection | None:
        self._drop_old()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            if self._socket_path is not None:
                _, connection = await loop.create_unix_connection(
                    lambda: _Connection(self), self._socket_path
                )
            else:
                server_hostname = self._host if self._tls else None
                _, connection = await loop.create_connection(
                    lambda: _Connection(self),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=server_hostname,
                )
        if not connection.is_closed:
            self._all.add(connection)
        return connection
