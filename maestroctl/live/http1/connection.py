"""One keep-alive connection to a peer, and the answer that comes over it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from maestroctl.live.http1.client import HttpPool

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

    def __init__(self, connection: Connection) -> None:
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


class Connection(asyncio.Protocol):
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
