"""The measurements of the gateway benchmark, each on programs that are already running.

What is measured repeatedly is measured in turns (direct, bare, ours, direct, ...), so that a
machine that slows down slows all of them down.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maestroctl.testing.bench.closed_loop import LoadResult, run_closed_loop
from maestroctl.testing.bench.http_client import Target, build_request, chat_body
from maestroctl.testing.bench.processes import wait_until
from maestroctl.testing.bench.product import CHAT_PATH, Product
from maestroctl.testing.bench.stats import Summary, summarize
from maestroctl.testing.bench.streams import StreamResult, run_streams

DIRECT, BARE, OURS, LITELLM = "direct", "bare", "ours", "litellm"

_BODY_BYTES = 1024
_OUTPUT_TOKENS = 16
_SETTLE_LIMIT_S = 20.0
"""Descriptors may take this long to be closed after the last stream."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        repeats: of everything that is repeated.
        latency_requests: of one client, per repeat and path.
        load_requests: of 32 clients, per repeat and path; a twentieth of it for LiteLLM.
        stream_waves: how often all streams are opened.
        streams, stream_tokens, token_interval_s: of one wave.
        growth_requests: between the two memory readings.
    """

    repeats: int = 7
    latency_requests: int = 1500
    load_requests: int = 6000
    clients: int = 32
    stream_waves: int = 5
    streams: int = 1200
    stream_tokens: int = 40
    token_interval_s: float = 0.2
    ramp_s: float = 1.0
    growth_requests: int = 10_000

    @classmethod
    def quick(cls) -> Sizes:
        """Enough to see that everything works; no figures to quote."""
        return cls(
            repeats=2,
            latency_requests=200,
            load_requests=800,
            stream_waves=2,
            stream_tokens=15,
            growth_requests=1000,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """One path under 32 clients, once."""

    requests_per_s: float
    latency_ms: Summary


@dataclass(frozen=True, slots=True)
class Wave:
    """All streams opened and read to their end, once. Bytes and descriptors are of both hops."""

    streams: int
    result: StreamResult
    cpu_s: float
    rss_before_bytes: int
    rss_after_bytes: int
    descriptors_after: int

    @property
    def cores(self) -> float:
        """Cores that both hops together kept busy."""
        return self.cpu_s / self.result.duration_s

    @property
    def answered_or_refused(self) -> int:
        """Streams that completed, or were refused before their first byte."""
        return self.result.completed + sum(self.result.refused.values())


@dataclass(frozen=True, slots=True)
class Growth:
    """Resident memory of both hops around many different requests."""

    requests: int
    before_bytes: int
    after_bytes: int


@dataclass(slots=True)
class Measured:
    """Everything that one run saw."""

    sizes: Sizes
    latencies_ms: list[Mapping[str, Summary]] = field(default_factory=list)
    loads: list[Mapping[str, Load]] = field(default_factory=list)
    waves: list[Wave] = field(default_factory=list)
    growth: Growth | None = None
    num_sent: int = 0  # closed-loop requests
    num_answered: int = 0  # those with status 200
    first_rss_bytes: int = 0  # both hops before any load
    first_descriptors: int = 0  # likewise
    most_rss_bytes: int = 0  # both hops, highest of all readings
    others_cores: float = 0.0
    load_average: tuple[float, float] = (0.0, 0.0)  # over one minute, at begin and end
    litellm_version: str | None = None
    litellm_problem: str | None = None

    def count(self, result: LoadResult, sent: int) -> None:
        """Note what became of requests."""
        self.num_sent += sent
        self.num_answered += len(result.latencies_s)


def whole_request(model: str, number: int = 0) -> bytes:
    """A chat request that is not streamed, with a body of 1 KiB.

    Args:
        number: makes it differ from others.
    """
    steer = f"TOKENS {_OUTPUT_TOKENS} number {number:08d} "
    empty = build_body(model, steer)
    return build_request(CHAT_PATH, build_body(model, steer + "x" * (_BODY_BYTES - len(empty))))


def build_body(model: str, text: str) -> bytes:
    """The body of a chat request of the closed loop."""
    return json.dumps({**chat_body(text, model=model), "max_tokens": 64}).encode()


def stream_request(model: str, tokens: int) -> bytes:
    """A chat request that is streamed."""
    body = {**chat_body(f"TOKENS {tokens}", model=model, stream=True), "max_tokens": tokens}
    return build_request(CHAT_PATH, body)


async def measure_latency(measured: Measured, paths: Mapping[str, Target], model: str) -> None:
    """One repeat of one client on each path."""
    request, sent = whole_request(model), measured.sizes.latency_requests
    seen = {}
    for name, target in _rotated(paths, len(measured.latencies_ms)):
        result = await run_closed_loop(
            target, request, clients=1, requests=sent, warmup=max(20, sent // 20)
        )
        measured.count(result, sent)
        seen[name] = summarize([value * 1000 for value in result.latencies_s])
    measured.latencies_ms.append(seen)


async def measure_load(measured: Measured, paths: Mapping[str, Target], model: str) -> None:
    """One repeat of 32 clients on each path."""
    request, sizes = whole_request(model), measured.sizes
    seen = {}
    for name, target in _rotated(paths, len(measured.loads)):
        sent = sizes.load_requests // (20 if name == LITELLM else 1)
        result = await run_closed_loop(
            target, request, clients=sizes.clients, requests=sent, warmup=sizes.clients * 4
        )
        measured.count(result, sent)
        latency_ms = summarize([value * 1000 for value in result.latencies_s])
        seen[name] = Load(result.requests_per_s, latency_ms)
    measured.loads.append(seen)


async def measure_wave(measured: Measured, product: Product, models: Sequence[str]) -> None:
    """Open all streams at once and read each to its end; wait until both hops are quiet."""
    sizes = measured.sizes
    requests = [stream_request(model, sizes.stream_tokens) for model in models]
    rss = product.rss_bytes()
    cpu_s = product.cpu_seconds()
    result = await run_streams(product.target, requests, streams=sizes.streams, ramp_s=sizes.ramp_s)
    cpu_s = product.cpu_seconds() - cpu_s
    _note_memory(measured, product)
    first = measured.first_descriptors
    await wait_until(lambda: product.num_descriptors() <= first, _SETTLE_LIMIT_S)
    measured.waves.append(
        Wave(
            streams=sizes.streams,
            result=result,
            cpu_s=cpu_s,
            rss_before_bytes=rss,
            rss_after_bytes=product.rss_bytes(),
            descriptors_after=product.num_descriptors(),
        )
    )


async def measure_growth(measured: Measured, product: Product, model: str) -> None:
    """Memory before and after many requests, no two of them alike."""
    number = 0
    readings = []
    for count in (measured.sizes.growth_requests // 5, measured.sizes.growth_requests):
        requests = [whole_request(model, number := number + 1) for _ in range(count)]
        result = await run_closed_loop(
            product.target, requests, clients=measured.sizes.clients, requests=count
        )
        measured.count(result, count)
        _note_memory(measured, product)
        readings.append(product.rss_bytes())
    measured.growth = Growth(measured.sizes.growth_requests, *readings)


def _note_memory(measured: Measured, product: Product) -> None:
    measured.most_rss_bytes = max(measured.most_rss_bytes, product.rss_bytes())


def _rotated(paths: Mapping[str, Target], by: int) -> list[tuple[str, Target]]:
    """The paths in turn, each repeat beginning with another one."""
    items = list(paths.items())
    by %= len(items)
    return items[by:] + items[:by]
