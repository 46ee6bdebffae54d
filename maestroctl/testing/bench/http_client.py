"""The least an HTTP/1.1 client needs to load a server: targets, requests, response parsing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server listens: a Unix socket or a TCP address."""

    path: str | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Target:
        """From ``unix:/run/x.sock``, ``/run/x.sock``, ``http://host:port`` or ``host:port``.

        Raises:
            ValueError: none of these.
        """
        plain = text.removeprefix("unix:")
        if plain != text or text.startswith("/"):
            return cls(path=plain)
        host, colon, port = text.removeprefix("http://").rstrip("/").rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"not a target: {text!r}; try unix:/path or host:port")
        return cls(host=host.strip("[]"), port=int(port))

    async def connect(self, factory: Callable[[], P]) -> P:
        """Open one connection."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            return (await loop.create_unix_connection(factory, self.path))[1]
        return (await loop.create_connection(factory, self.host, self.port))[1]


DEFAULT_LIMIT_S = 120.0
"""Seconds a whole run may take before what is still open counts as ``timeout``."""


def build_request(
    path: str, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST"
) -> bytes:
    """The bytes of one request; sent again and again by a load client.

    Args:
        path: target of the request line.
        body: bytes as they are, anything else as JSON.
        headers: more headers.
        method: of the request line.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {
        "Host": "bench",
        "Content-Type": "application/json",
        "Content-Length": str(len(data)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data


class ResponseError(ValueError):
    """The server sent what is no HTTP response."""


class ResponseParser:
    """Parses one response after the other from the bytes of a connection.

    Args:
        on_body: called with each piece of body, in order; None when the body is of no interest.
    """

    def __init__(self, on_body: Callable[[bytes], None] | None = None) -> None:
        self.status = 0
        self.keep_alive = True
        self._on_body = on_body
        self._buffer = b""
        self._left: int | None = None  # bytes of body, or of the current chunk, still to come
        self._chunked = False
        self._in_body = False

    def feed(self, data: bytes) -> bool:
        """Take bytes; True when the response is complete.

        A load client sends its next request only after that, so nothing may follow a response.

        Raises:
            ValueError: this is no HTTP, for instance `ResponseError`.
        """
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        if not self._in_body:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = data
                return False
            self._read_head(data[:end])
            data = data[end + 4 :]
        done = self._feed_chunks(data) if self._chunked else self._feed_plain(data)
        if done:
            self._in_body = False
        return done

    def _read_head(self, head: bytes) -> None:
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise ResponseError(f"not an HTTP response: {head[:60]!r}")
        self.status = int(head[9:12])
        lowered = head.lower() + b"\r\n"
        self.keep_alive = b"\r\nconnection: close\r\n" not in lowered
        self._chunked = b"\r\ntransfer-encoding: chunked\r\n" in lowered
        self._left = None if self._chunked else self._content_length(lowered)
        self._in_body = True

    def _content_length(self, lowered: bytes) -> int:
        mark = lowered.find(b"\r\ncontent-length:")
        if mark < 0:
            if self.status in (204, 304):
                return 0
            raise ResponseError("a response without length and without chunks")
        return int(lowered[mark + 17 : lowered.index(b"\r\n", mark + 17)])

    def _feed_plain(self, data: bytes) -> bool:
        assert self._left is not None
        self._left -= len(data)
        if self._left < 0:
            raise ResponseError("more bytes than the response said")
        if data and self._on_body is not None:
            self._on_body(data)
        return self._left == 0

    def _feed_chunks(self, data: bytes) -> bool:
        while data:
            if self._left is None:
                end = data.find(b"\r\n")
                if end < 0:
                    break
                self._left = int(data[:end].partition(b";")[0], 16) + 2  # the line end behind it
                if self._left == 2 and len(data) < end + 4:
                    self._left = None
                    break
                if self._left == 2:
                    self._left = None
                    return True
                data = data[end + 2 :]
            piece = data[: self._left]
            data = data[self._left :]
            self._left -= len(piece)
            self._deliver(piece)
            if self._left == 0:
                self._left = None
        self._buffer = data
        return False

    def _deliver(self, piece: bytes) -> None:
        """Hand over a piece of a chunk without the line end behind the chunk."""
        assert self._left is not None
        if self._on_body is not None:
            surplus = max(0, 2 - self._left)
            text = piece[: max(0, len(piece) - surplus)] if surplus else piece
            if text:
                self._on_body(text)


class EventCounter:
    """Counts the events of a stream as pieces of it arrive."""

    def __init__(self) -> None:
        self.chunks = 0  # data events, the end marker aside
        self.heartbeats = 0  # comments
        self.errors = 0  # events that carry an error
        self.is_done = False  # the end marker was seen
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take a piece of the body, cut anywhere."""
        *events, self._tail = (self._tail + data).split(b"\n\n")
        for event in events:
            if event.startswith(b":"):
                self.heartbeats += 1
            elif event.startswith(b"data: [DONE]"):
                self.is_done = True
            elif event.startswith((b'data: {"error"', b"event: error")):
                self.errors += 1
            else:
                self.chunks += 1


def chat_body(text: str, *, model: str | None = None, stream: bool = False) -> dict[str, Any]:
    """Body of a chat request with one user message."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if model is not None:
        body["model"] = model
    return {**body, "stream": True} if stream else body


def as_requests(request: bytes | Sequence[bytes]) -> Sequence[bytes]:
    """One request, or several that take turns."""
    return (request,) if isinstance(request, bytes) else request
