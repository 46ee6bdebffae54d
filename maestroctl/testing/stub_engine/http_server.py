"""The HTTP/1.1 server under the stub engine: one `asyncio.Protocol`, requests handled one by one.

Life of a connection::

    reading head -> reading body -> exchange open -> (response finished) -> reading head -> ...

Exactly one `Exchange` is open at a time; bytes that arrive meanwhile stay in the buffer (reading is
paused past a limit). A handler is called synchronously; it may finish the exchange at once, keep it
and finish it from a timer, or return a coroutine that is run as a task. When the peer goes away
first, ``Exchange.on_gone`` is called at once: a client that closes frees its slot.

Covers what clients of an engine send: keep-alive, pipelining, bodies with a length or in chunks,
``Expect: 100-continue``. Not covered: trailers, upgrades, HTTP/2.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, cast

MAX_HEAD_BYTES = 64 * 1024
MAX_WAITING_BYTES = 1024 * 1024
"""Bytes of later requests held while an exchange is open, before reading is paused."""

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
_CLOSE = b"connection: close\r\n"
_END_OF_STREAM = b"0\r\n\r\n"

_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Handler = Callable[["Exchange"], Coroutine[Any, Any, None] | None]


def dump_json(value: Any) -> bytes:
    """Compact JSON in UTF-8, non-Latin letters unescaped, as vLLM writes it."""
    return _encode_json(value).encode("utf-8", "surrogatepass")


class BadHead(Exception):
    """The peer does not speak HTTP/1.x; answered with 400 and a close."""


class Request:
    """One parsed request. Header names are in lower case."""

    __slots__ = ("body", "headers", "method", "path", "query", "version")

    def __init__(self, head: str) -> None:
        lines = head.split("\r\n")
        try:
            self.method, target, self.version = lines[0].split(" ")
        except ValueError:
            raise BadHead(f"bad request line {lines[0][:80]!r}") from None
        self.path, _, self.query = target.partition("?")
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadHead(f"bad header line {line[:80]!r}")
            self.headers[name.lower()] = value.strip()
        self.body = b""

    @property
    def keep_alive(self) -> bool:
        """Whether the connection may serve another request."""
        wish = self.headers.get("connection", "").lower()
        return wish == "keep-alive" if self.version == "HTTP/1.0" else wish != "close"


class Exchange:
    """One request and the response to it. Owner: the connection; used by one handler."""

    __slots__ = ("_connection", "_streaming", "extra_head", "on_gone", "on_writable", "request")

    def __init__(self, connection: HttpConnection, request: Request) -> None:
        self.request = request
        self.on_gone: Callable[[], None] | None = None  # the peer left before the response ended
        self.on_writable: Callable[[], None] | None = None  # the send buffer has room again
        self.extra_head = b""  # header lines added to the response
        self._connection = connection
        self._streaming = False

    @property
    def is_open(self) -> bool:
        """False once the response ended, or the peer left."""
        return self._connection.exchange is self

    @property
    def is_streaming(self) -> bool:
        """Whether the head of a stream has been sent."""
        return self._streaming

    @property
    def writable(self) -> bool:
        """False while the peer reads too slowly."""
        return self._connection.writable

    def send(self, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
        """Send a whole response; ignored when the exchange is no longer open."""
        if self.is_open:
            head = self._head(status, content_type, b"content-length: %d\r\n" % len(body))
            self._connection.write(head + body)
            self._connection.finish_exchange()

    def send_json(self, status: int, value: Any) -> None:
        """Send a whole JSON response."""
        self.send(status, dump_json(value))

    def start_stream(self) -> None:
        """Send the head of an event stream."""
        self._streaming = True
        self._connection.write(
            self._head(200, b"text/event-stream; charset=utf-8", b"transfer-encoding: chunked\r\n")
        )

    def write_chunks(self, chunks: Iterable[bytes]) -> None:
        """Send pieces of a stream, each as one HTTP chunk, in one write."""
        if self.is_open:
            framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
            self._connection.write(framed[0] if len(framed) == 1 else b"".join(framed))

    def end_stream(self) -> None:
        """Send the terminating chunk."""
        if self.is_open:
            self._connection.write(_END_OF_STREAM)
            self._connection.finish_exchange()

    def cut(self, status: int = 200, body: bytes = b"") -> None:
        """Break off: a stream without its last chunk, a whole body half sent."""
        if not self.is_open:
            return
        if not self._streaming and body:
            head = self._head(status, b"application/json", b"content-length: %d\r\n" % len(body))
            self._connection.write(head + body[: len(body) // 2])
        self._connection.close_after_flush()

    def _head(self, status: int, content_type: bytes, framing: bytes) -> bytes:
        closing = b"" if self.request.keep_alive else _CLOSE
        kind = b"content-type: %b\r\n" % content_type if content_type else b""
        return b"%b%b%b%b%b\r\n" % (
            _STATUS_LINES[status],
            kind,
            framing,
            self.extra_head,
            closing,
        )


class HttpServer:
    """What all connections share: the handler and the tables of open things."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections: set[HttpConnection] = set()
        self.num_open_exchanges = 0
        self.idle = asyncio.Event()  # set while no exchange is open
        self.idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self) -> HttpConnection:
        """Protocol factory for ``loop.create_server``."""
        return HttpConnection(self)

    def dispatch(self, exchange: Exchange) -> None:
        """Call the handler; a bug in it is answered with 500 and printed."""
        self.num_open_exchanges += 1
        self.idle.clear()
        try:
            pending = self.handler(exchange)
        except Exception:
            self._report_bug(exchange)
            return
        if pending is not None:
            task = asyncio.ensure_future(self._run(exchange, pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def exchange_closed(self) -> None:
        """One exchange ended, whichever way."""
        self.num_open_exchanges -= 1
        if self.num_open_exchanges == 0:
            self.idle.set()

    async def _run(self, exchange: Exchange, pending: Coroutine[Any, Any, None]) -> None:
        try:
            await pending
        except Exception:
            self._report_bug(exchange)

    @staticmethod
    def _report_bug(exchange: Exchange) -> None:
        traceback.print_exc(file=sys.stderr)
        if exchange.is_streaming:
            exchange.cut()
        else:
            exchange.send(500, b"Internal Server Error", b"text/plain; charset=utf-8")


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: HttpServer) -> None:
        self.exchange: Exchange | None = None
        self.writable = True
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._request: Request | None = None  # its head is read, its body is not
        self._chunks: list[bytes] = []  # decoded pieces of a chunked body
        self._advancing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # uvloop's transports are not of asyncio's classes, so this cannot be checked.
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        """Called by the loop when either side closed."""
        self._transport = None
        self._server.connections.discard(self)
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._server.exchange_closed()
            if exchange.on_gone is not None:
                exchange.on_gone()

    def pause_writing(self) -> None:
        """Called by the loop when the send buffer is full."""
        self.writable = False

    def resume_writing(self) -> None:
        """Called by the loop when the send buffer has room again."""
        self.writable = True
        if self.exchange is not None and self.exchange.on_writable is not None:
            self.exchange.on_writable()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._buffer += data
        if self.exchange is None:
            self._advance()
        elif len(self._buffer) > MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def write(self, data: bytes) -> None:
        """Send bytes, unless the peer has gone."""
        if self._transport is not None:
            self._transport.write(data)

    def finish_exchange(self) -> None:
        """The response is complete: serve what has been waiting, or close."""
        assert self.exchange is not None
        keep_alive = self.exchange.request.keep_alive
        self.exchange = None
        self._server.exchange_closed()
        if not keep_alive:
            self.close_after_flush()
        elif not self._advancing and self._transport is not None:
            self._transport.resume_reading()
            if self._buffer:
                self._advance()

    def close_after_flush(self) -> None:
        """Close once what was written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def _advance(self) -> None:
        self._advancing = True
        try:
            while self.exchange is None and self._transport is not None:
                request = self._next_request()
                if request is None:
                    return
                self.exchange = Exchange(self, request)
                self._server.dispatch(self.exchange)
                if not request.keep_alive:
                    return
        except BadHead as error:
            self.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n" + _CLOSE + b"\r\n")
            print(f"WARNING closed a connection: {error}", file=sys.stderr)
            self.close_after_flush()
        finally:
            self._advancing = False

    def _next_request(self) -> Request | None:
        """The next complete request of the buffer, or None when bytes are missing."""
        if self._request is None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise BadHead("the head is too long")
                return None
            self._request = Request(self._buffer[:end].decode("latin-1"))
            del self._buffer[: end + 4]
            if not self._buffer and "expect" in self._request.headers:
                self.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self._take_body(self._request)
        if body is None:
            return None
        request, self._request = self._request, None
        request.body = body
        return request

    def _take_body(self, request: Request) -> bytes | None:
        if "chunked" in request.headers.get("transfer-encoding", ""):
            return self._take_chunked()
        try:
            length = int(request.headers.get("content-length", "0"))
        except ValueError:
            raise BadHead("content-length is no number") from None
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _take_chunked(self) -> bytes | None:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            try:
                size = int(self._buffer[:end].partition(b";")[0], 16)
            except ValueError:
                raise BadHead("bad chunk size") from None
            if len(self._buffer) < end + 2 + size + 2:
                return None
            self._chunks.append(bytes(self._buffer[end + 2 : end + 2 + size]))
            del self._buffer[: end + 2 + size + 2]
            if size == 0:
                body = b"".join(self._chunks)
                self._chunks.clear()
                return body
        return None
