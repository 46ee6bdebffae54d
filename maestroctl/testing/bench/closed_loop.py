"""Closed-loop load: n clients, each sends its next request when its last answer is complete.

Raw `asyncio.Protocol` connections, so that the clients take a small part of the machine they share
with what is measured. Times are taken with ``perf_counter``: the clock of a uvloop counts whole
milliseconds only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from maestroctl.testing.bench.http_client import (
    DEFAULT_LIMIT_S,
    ResponseParser,
    Target,
    as_requests,
)
from maestroctl.testing.bench.stats import milliseconds


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
            "latency_ms": milliseconds(self.latencies_s),
            "statuses": dict(self.statuses),
            "errors": dict(self.errors),
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
    work = _Loop(as_requests(request), requests, clients)
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
