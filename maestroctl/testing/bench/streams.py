"""Many streams at once: opened together or over a ramp, and read to their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from maestroctl.testing.bench.http_client import (
    DEFAULT_LIMIT_S,
    EventCounter,
    ResponseParser,
    Target,
    as_requests,
)
from maestroctl.testing.bench.stats import milliseconds


@dataclass(slots=True)
class StreamResult:
    """What many streams saw. Every stream is counted in exactly one of the first four."""

    completed: int = 0  # end marker seen, connection in order
    refused: Counter[int] = field(default_factory=Counter)  # by status other than 200
    failed: int = 0  # ended by an error event: visible to the client
    broken: Counter[str] = field(default_factory=Counter)  # cut, timed out, never connected
    chunks: int = 0
    heartbeats: int = 0
    first_chunk_s: list[float] = field(default_factory=list)
    total_s: list[float] = field(default_factory=list)  # of completed streams
    duration_s: float = 0.0
    open_now: int = 0
    most_open: int = 0  # streams open at once, at most

    def opened(self) -> None:
        """One more stream is open."""
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)

    def as_dict(self) -> dict[str, Any]:
        """Figures only; times in milliseconds."""
        return {
            "completed": self.completed,
            "refused": dict(self.refused),
            "failed": self.failed,
            "broken": dict(self.broken),
            "chunks": self.chunks,
            "heartbeats": self.heartbeats,
            "most_open": self.most_open,
            "first_chunk_ms": milliseconds(self.first_chunk_s),
            "total_ms": milliseconds(self.total_s),
            "duration_s": self.duration_s,
        }


class _Stream(asyncio.Protocol):
    """One stream on a connection of its own."""

    def __init__(self, request: bytes, result: StreamResult) -> None:
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._result = result
        self._events = EventCounter()
        self._parser = ResponseParser(self._on_body)
        self._sent_s = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._sent_s = perf_counter()
        self._result.opened()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self.finished.done():
            return
        try:
            if self._parser.feed(data):
                self._end(None)
        except ValueError as error:
            self._end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {type(exc).__name__ if exc else 'closed'}")

    def give_up(self, reason: str) -> None:
        """Count it as broken and close."""
        self._end(reason)

    def _on_body(self, data: bytes) -> None:
        before = self._events.chunks
        self._events.feed(data)
        if before == 0 and self._events.chunks and self._parser.status == 200:
            self._result.first_chunk_s.append(perf_counter() - self._sent_s)

    def _end(self, problem: str | None) -> None:
        if self.finished.done():
            return
        self.finished.set_result(None)
        if self._transport is not None:
            self._transport.close()
            self._result.open_now -= 1
        self._count(problem)

    def _count(self, problem: str | None) -> None:
        result, events = self._result, self._events
        if problem is not None:
            result.broken[problem] += 1
        elif self._parser.status != 200:
            result.refused[self._parser.status] += 1
            return
        elif events.errors:
            result.failed += 1
        elif events.is_done:
            result.completed += 1
            result.total_s.append(perf_counter() - self._sent_s)
        else:
            result.broken["ended without its end marker"] += 1
        result.chunks += events.chunks
        result.heartbeats += events.heartbeats


async def run_streams(
    target: Target,
    request: bytes | Sequence[bytes],
    *,
    streams: int,
    ramp_s: float = 0.0,
    limit_s: float = DEFAULT_LIMIT_S,
) -> StreamResult:
    """Open many streams and read each to its end.

    Args:
        target: the server.
        request: from ``build_request``, with ``"stream": true`` in its body; or several, in turn.
        streams: connections, one stream each.
        ramp_s: seconds over which they are opened.
        limit_s: for the whole run; what is open then counts as broken.
    """
    result = StreamResult()
    began_s = perf_counter()
    several = as_requests(request)
    step_s = ramp_s / max(1, streams)
    tasks = [
        asyncio.create_task(
            _one_stream(target, several[index % len(several)], result, step_s * index)
        )
        for index in range(streams)
    ]
    opened: list[_Stream] = []
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, _Stream):
            opened.append(outcome)
        else:
            result.broken[f"not connected: {type(outcome).__name__}"] += 1
    left_s = limit_s - (perf_counter() - began_s)
    if opened:
        await asyncio.wait([one.finished for one in opened], timeout=max(0.0, left_s))
    for one in opened:
        one.give_up("timeout")
    result.duration_s = perf_counter() - began_s
    return result


async def _one_stream(
    target: Target, request: bytes, result: StreamResult, delay_s: float
) -> _Stream:
    await asyncio.sleep(delay_s)
    return await target.connect(lambda: _Stream(request, result))
