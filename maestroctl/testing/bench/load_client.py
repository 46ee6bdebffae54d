"""Load clients that cost little: closed-loop requests, and many streams at once.

Raw `asyncio.Protocol` connections, one request in flight on each, so that the client takes a small
part of the machine it shares with what it measures. Times are taken with ``perf_counter``: the
clock of a uvloop counts whole milliseconds only.

* ``run_closed_loop``: n clients, each sends its next request when the last answer is complete.
* ``run_streams``: n streams opened (all at once or over a ramp) and read to their end.

Run it::

    python -m maestroctl.testing.bench.load_client unix:/tmp/e.sock --clients 32 --requests 20000
    python -m maestroctl.testing.bench.load_client 127.0.0.1:8080 --streams 1200 --tokens 50
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

import uvloop

from maestroctl.testing.bench.http_client import (
    EventCounter,
    ResponseParser,
    Target,
    build_request,
)
from maestroctl.testing.bench.stats import Summary, summarize
from maestroctl.testing.proc import cpu_seconds

DEFAULT_LIMIT_S = 120.0
"""Seconds a whole run may take before what is still open counts as ``timeout``."""


@dataclass(slots=True)
class LoadResult:
    """What a closed loop saw."""

    latencies_s: list[float] = field(default_factory=list)  # of answers with status 200
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)  # requests without a whole answer
    duration_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        """Answers with status 200 per second."""
        return len(self.latencies_s) / self.duration_s if self.duration_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Figures only; latencies in milliseconds."""
        return {
            "requests_per_s": self.requests_per_s,
            "latency_ms": _milliseconds(self.latencies_s),
            "statuses": dict(self.statuses),
            "errors": dict(self.errors),
            "duration_s": self.duration_s,
        }


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
            "first_chunk_ms": _milliseconds(self.first_chunk_s),
            "total_ms": _milliseconds(self.total_s),
            "duration_s": self.duration_s,
        }


class _Loop:
    """The work that the clients of one closed loop share."""

    def __init__(self, requests: Sequence[bytes], num_requests: int, num_clients: int) -> None:
        self._requests = requests
        self.left = num_requests
        self.result = LoadResult()
        self.finished = asyncio.get_running_loop().create_future()
        self._clients_left = num_clients

    def take(self) -> bytes | None:
        """The next request to send; None when there are no more."""
        self.left -= 1
        return self._requests[self.left % len(self._requests)] if self.left >= 0 else None

    def client_finished(self) -> None:
        """One client has nothing more to do."""
        self._clients_left -= 1
        if self._clients_left == 0 and not self.finished.done():
            self.finished.set_result(None)


class _LoopClient(asyncio.Protocol):
    """One connection of a closed loop."""

    def __init__(self, work: _Loop) -> None:
        self._work = work
        self._parser = ResponseParser()
        self._sent_s = 0.0
        self._waiting = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no asyncio class
        self._send()

    def data_received(self, data: bytes) -> None:
        try:
            complete = self._parser.feed(data)
        except ValueError as error:
            self._fail(str(error))
            return
        if not complete:
            return
        result = self._work.result
        self._waiting = False
        result.statuses[self._parser.status] += 1
        if self._parser.status == 200:
            result.latencies_s.append(perf_counter() - self._sent_s)
        if self._parser.keep_alive:
            self._send()
        else:
            self._close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._fail(f"connection lost: {type(exc).__name__ if exc else 'closed'}")

    def stop(self) -> None:
        """Close; a request without its answer is an error."""
        self._fail("timeout")

    def _send(self) -> None:
        assert self._transport is not None
        request = self._work.take()
        if request is not None:
            self._waiting = True
            self._sent_s = perf_counter()
            self._transport.write(request)
        else:
            self._close()

    def _fail(self, reason: str) -> None:
        if self._waiting:
            self._waiting = False
            self._work.result.errors[reason] += 1
        self._close()

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
            self._work.client_finished()


async def run_closed_loop(
    target: Target,
    request: bytes | Sequence[bytes],
    *,
    clients: int,
    requests: int,
    warmup: int = 0,
    limit_s: float = DEFAULT_LIMIT_S,
) -> LoadResult:
    """Send requests as fast as answers come.

    Args:
        target: the server.
        request: from ``build_request``; the same for all, or several that are sent in turn.
        clients: connections, each with one request in flight.
        requests: of all clients together.
        warmup: requests sent before, not measured.
        limit_s: for the whole run; what is open then counts as an error.

    A client whose connection breaks stops and the others go on with its share. Every request is
    counted once: in ``statuses``, or in ``errors`` (lost, timed out, not sent).
    """
    if warmup:
        await run_closed_loop(target, request, clients=clients, requests=warmup, limit_s=limit_s)
    work = _Loop(_several(request), requests, clients)
    began_s = perf_counter()
    connects = [target.connect(lambda: _LoopClient(work)) for _ in range(clients)]
    connected: list[_LoopClient] = []
    for outcome in await asyncio.gather(*connects, return_exceptions=True):
        if isinstance(outcome, _LoopClient):
            connected.append(outcome)
        else:
            work.result.errors[f"not connected: {type(outcome).__name__}"] += 1
            work.client_finished()
    await asyncio.wait([work.finished], timeout=limit_s)
    work.result.duration_s = perf_counter() - began_s
    for client in connected:
        client.stop()
    if work.left > 0:
        work.result.errors["not sent"] += work.left
    return work.result


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
    several = _several(request)
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


def _several(request: bytes | Sequence[bytes]) -> Sequence[bytes]:
    return (request,) if isinstance(request, bytes) else request


def chat_body(text: str, *, model: str | None = None, stream: bool = False) -> dict[str, Any]:
    """Body of a chat request with one user message."""
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if model is not None:
        body["model"] = model
    return {**body, "stream": True} if stream else body


def _milliseconds(values_s: Sequence[float]) -> dict[str, float] | None:
    if not values_s:
        return None
    summary: Summary = summarize([value * 1000 for value in values_s])
    return summary.as_dict()


def _parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="load_client", description=__doc__)
    add = parser.add_argument
    add("target", type=Target.parse, help="unix:/path or host:port")
    add("--path", default="/v1/chat/completions")
    add("--model")
    add("--tokens", type=int, default=1, help="output tokens asked of a stub engine")
    add("--clients", type=int, default=32)
    add("--requests", type=int, default=10_000)
    add("--warmup", type=int, default=500)
    add("--streams", type=int, default=0, help="streams at once instead of closed-loop requests")
    add("--ramp", type=float, default=0.0, help="s over which streams are opened")
    add("--limit", type=float, default=DEFAULT_LIMIT_S, help="s for the whole run")
    add("--api-key")
    add("--pid", type=int, nargs="*", default=[], help="processes whose CPU time is reported")
    return parser.parse_args(argv)


async def _run(args: argparse.Namespace) -> dict[str, Any]:
    body = chat_body(f"TOKENS {args.tokens}", model=args.model, stream=args.streams > 0)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    request = build_request(args.path, body, headers)
    cpu_before_s = cpu_seconds(args.pid)
    result: LoadResult | StreamResult
    if args.streams:
        result = await run_streams(
            args.target, request, streams=args.streams, ramp_s=args.ramp, limit_s=args.limit
        )
    else:
        result = await run_closed_loop(
            args.target,
            request,
            clients=args.clients,
            requests=args.requests,
            warmup=args.warmup,
            limit_s=args.limit,
        )
    figures = result.as_dict()
    if args.pid:
        figures["cpu_s"] = cpu_seconds(args.pid) - cpu_before_s
        figures["cores"] = figures["cpu_s"] / max(1e-9, result.duration_s)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run one load and print its figures as one JSON object."""
    args = _parse_args(argv)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(args))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
