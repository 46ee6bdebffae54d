"""From what the gateway benchmark saw to its table and its figures. Pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from maestroctl.testing.bench.gateway_runs import (
    BARE,
    DIRECT,
    LITELLM,
    OURS,
    Growth,
    Load,
    Measured,
    Wave,
)
from maestroctl.testing.bench.report import Row, Section
from maestroctl.testing.bench.stats import Spread, Summary, median, spread

ADDED_MEDIAN_MS = 1.0
"""Target: added latency at the median."""
ABOVE_BARE_P99_MS = 2.0
"""Target: how far the 99th percentile may lie above the bare proxy's."""
LEAST_REQUESTS_PER_S = 1500.0
LEAST_LITELLM_RATIO = 20.0
MOST_CORES = 1.0
MOST_RESIDENT_MB = 200.0
SAME_LEVEL = 0.05
"""Memory is "back" and "does not grow" within this share of itself."""

_MB = 1e6
_NAMES = {DIRECT: "direct", BARE: "bare proxy", OURS: "maestroctl", LITELLM: "LiteLLM"}


def make_sections(measured: Measured) -> tuple[list[Section], list[str]]:
    """The table, and what has to be said below it."""
    sections = [_latency_section(measured), _load_section(measured)]
    sections += [_stream_section(measured)] if measured.waves else []
    sections += [_memory_section(measured)]
    return sections, _notes(measured)


def make_figures(measured: Measured) -> dict[str, Any]:
    """Every figure by name; what was not measured is None."""
    added = _added(measured)
    ratio = _litellm_ratio(measured)
    return {
        "added_latency_ms": {name: figure.median for name, figure in added[OURS].items()},
        "added_latency_ms_spread": {n: figure.as_dict() for n, figure in added[OURS].items()},
        "bare_added_latency_ms": {name: figure.median for name, figure in added[BARE].items()},
        "p99_above_bare_ms": _above_bare(measured).as_dict(),
        "latency_ms": {
            name: {
                "median": _latency(measured, name, lambda one: one.median).as_dict(),
                "p99": _latency(measured, name, lambda one: one.p99).as_dict(),
            }
            for name in (DIRECT, BARE, OURS)
        },
        "requests_per_s": {name: _rate_or_none(measured, name) for name in (OURS, BARE, LITELLM)},
        "litellm_ratio": ratio.median if ratio else None,
        "litellm_ratio_spread": ratio.as_dict() if ratio else None,
        "litellm_version": measured.litellm_version,
        "litellm_problem": measured.litellm_problem,
        "requests": {"sent": measured.num_sent, "answered": measured.num_answered},
        "streams": _stream_figures(measured) if measured.waves else None,
        "memory": _memory_figures(measured),
        "repeats": measured.sizes.repeats,
        "machine": {
            "cores": os.cpu_count(),
            "others_cores": measured.others_cores,
            "load_average": list(measured.load_average),
        },
    }


# --- one client -----------------------------------------------------------------------------------


def _latency(measured: Measured, name: str, read: Callable[[Summary], float]) -> Spread:
    return spread([read(one[name]) for one in measured.latencies_ms])


def _added(measured: Measured) -> dict[str, dict[str, Spread]]:
    """Latency above the direct call of the same repeat."""
    reads: dict[str, Callable[[Summary], float]] = {
        "median": lambda one: one.median,
        "p99": lambda one: one.p99,
    }
    return {
        name: {
            what: spread([read(one[name]) - read(one[DIRECT]) for one in measured.latencies_ms])
            for what, read in reads.items()
        }
        for name in (OURS, BARE)
    }


def _above_bare(measured: Measured) -> Spread:
    return spread([one[OURS].p99 - one[BARE].p99 for one in measured.latencies_ms])


def _latency_section(measured: Measured) -> Section:
    added, above = _added(measured), _above_bare(measured)
    rows = []
    for name in (DIRECT, BARE, OURS):
        middle = _latency(measured, name, lambda one: one.median)
        tail = _latency(measured, name, lambda one: one.p99)
        rows.append(Row(f"{_NAMES[name]}, median", f"{middle:.2f} ms"))
        rows.append(Row(f"{_NAMES[name]}, p99", f"{tail:.2f} ms"))
    rows += [
        Row("bare proxy adds, median", f"{added[BARE]['median']:.2f} ms"),
        Row(
            "maestroctl adds, median",
            f"{added[OURS]['median']:.2f} ms",
            f"<= {ADDED_MEDIAN_MS:g} ms",
            added[OURS]["median"].median <= ADDED_MEDIAN_MS,
        ),
        Row("maestroctl adds, p99", f"{added[OURS]['p99']:.2f} ms"),
        Row(
            "p99 above the bare proxy's",
            f"{above:.2f} ms",
            f"<= {ABOVE_BARE_P99_MS:g} ms",
            above.median <= ABOVE_BARE_P99_MS,
        ),
    ]
    return Section("One client, 1 KiB chat, not streamed", tuple(rows))


# --- 32 clients -----------------------------------------------------------------------------------


def _loads(measured: Measured, name: str) -> list[Load]:
    return [one[name] for one in measured.loads if name in one]


def _rate_or_none(measured: Measured, name: str) -> dict[str, float] | None:
    loads = _loads(measured, name)
    return spread([load.requests_per_s for load in loads]).as_dict() if loads else None


def _litellm_ratio(measured: Measured) -> Spread | None:
    ratios = [
        one[OURS].requests_per_s / one[LITELLM].requests_per_s
        for one in measured.loads
        if LITELLM in one and one[LITELLM].requests_per_s
    ]
    return spread(ratios) if ratios else None


def _load_section(measured: Measured) -> Section:
    rows = []
    for name in (BARE, LITELLM, OURS):
        if not (loads := _loads(measured, name)):
            continue
        rate = spread([load.requests_per_s for load in loads])
        middle = spread([load.latency_ms.median for load in loads])
        value = f"{rate:,.0f} req/s, p50 {middle.median:.1f} ms"
        is_ours = name == OURS
        rows.append(
            Row(
                f"throughput, {_NAMES[name]}",
                value,
                f">= {LEAST_REQUESTS_PER_S:,.0f} req/s" if is_ours else "",
                rate.median >= LEAST_REQUESTS_PER_S if is_ours else None,
            )
        )
    ratio = _litellm_ratio(measured)
    rows.append(
        Row(
            "maestroctl / LiteLLM",
            f"{ratio:.1f} x" if ratio else "-",
            f">= {LEAST_LITELLM_RATIO:g} x",
            ratio.median >= LEAST_LITELLM_RATIO if ratio else None,
        )
    )
    return Section(f"{measured.sizes.clients} clients, the same request", tuple(rows))


# --- streams --------------------------------------------------------------------------------------


def _stream_figures(measured: Measured) -> dict[str, Any]:
    waves = measured.waves
    broken: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for wave in waves:
        broken.update(wave.result.broken)
        refused.update({str(status): n for status, n in wave.result.refused.items()})
    return {
        "sent": sum(wave.streams for wave in waves),
        "completed": sum(wave.result.completed for wave in waves),
        "refused": dict(refused),
        "failed": sum(wave.result.failed for wave in waves),
        "broken": dict(broken),
        "most_open": min(wave.result.most_open for wave in waves),
        "cores": spread([wave.cores for wave in waves]).as_dict(),
        "chunks_per_s": median([wave.result.chunks / wave.result.duration_s for wave in waves]),
        "first_chunk_p99_ms": _first_chunk_p99_ms(waves).as_dict() if _any_chunk(waves) else None,
        "rss_mb": [[w.rss_before_bytes / _MB, w.rss_after_bytes / _MB] for w in waves],
        "rss_growth_after_first": _wave_growth(waves),
        "descriptors": [measured.first_descriptors, *(w.descriptors_after for w in waves)],
        "descriptors_left": _descriptors_left(measured),
    }


def _any_chunk(waves: list[Wave]) -> bool:
    return all(wave.result.first_chunk_s for wave in waves)


def _first_chunk_p99_ms(waves: list[Wave]) -> Spread:
    tails = []
    for wave in waves:
        ordered = sorted(wave.result.first_chunk_s)
        tails.append(ordered[int(len(ordered) * 0.99)] * 1000)
    return spread(tails)


def _wave_growth(waves: list[Wave]) -> float:
    """Growth of memory from the end of the first wave to the end of the last, as a share.

    The first wave is what the level is measured against: it brings in the buffers for this many
    connections, which the allocator keeps.
    """
    first = waves[0].rss_after_bytes
    return (waves[-1].rss_after_bytes - first) / first


def _descriptors_left(measured: Measured) -> int:
    """Descriptors open after the last wave that were not open before any load."""
    return max(0, measured.waves[-1].descriptors_after - measured.first_descriptors)


def _stream_section(measured: Measured) -> Section:
    waves = measured.waves
    sent = sum(wave.streams for wave in waves)
    answered = sum(wave.answered_or_refused for wave in waves)
    completed = sum(wave.result.completed for wave in waves)
    cores = spread([wave.cores for wave in waves])
    before, after = waves[0].rss_before_bytes / _MB, waves[-1].rss_after_bytes / _MB
    growth, left = _wave_growth(waves), _descriptors_left(measured)
    rows = [
        Row(
            "completed or cleanly refused",
            f"{completed:,} + {answered - completed:,} of {sent:,}",
            "all",
            answered == sent,
        ),
        Row("open at once", f"{min(wave.result.most_open for wave in waves):,}"),
        Row(
            "processor, both hops",
            f"{cores:.2f} cores",
            f"<= {MOST_CORES:g} core",
            cores.median <= MOST_CORES,
        ),
        Row("resident, both hops", f"{before:.0f} MB before, {after:.0f} MB after the last wave"),
        Row(
            "growth since the first wave",
            f"{growth:+.1%}",
            f"<= {SAME_LEVEL:.0%}",
            growth <= SAME_LEVEL,
        ),
        Row("descriptors left", f"{left}", "none", left == 0),
    ]
    sizes = measured.sizes
    heading = f"{sizes.streams:,} streams over 4 engines, {1 / sizes.token_interval_s:g} tokens/s"
    return Section(f"{heading} each, {len(waves)} waves", tuple(rows))


# --- memory ---------------------------------------------------------------------------------------


def _growth_share(growth: Growth) -> float:
    return (growth.after_bytes - growth.before_bytes) / growth.before_bytes


def _memory_figures(measured: Measured) -> dict[str, Any]:
    growth = measured.growth
    return {
        "first_mb": measured.first_rss_bytes / _MB,
        "most_mb": measured.most_rss_bytes / _MB,
        "before_requests_mb": growth.before_bytes / _MB if growth else None,
        "after_requests_mb": growth.after_bytes / _MB if growth else None,
        "growth_over_requests": _growth_share(growth) if growth else None,
        "growth_requests": growth.requests if growth else None,
    }


def _memory_section(measured: Measured) -> Section:
    growth = measured.growth
    most = measured.most_rss_bytes / _MB
    rows = [
        Row("before any load", f"{measured.first_rss_bytes / _MB:.0f} MB"),
        Row(
            "highest reading",
            f"{most:.0f} MB",
            f"<= {MOST_RESIDENT_MB:g} MB",
            most <= MOST_RESIDENT_MB,
        ),
    ]
    if growth is not None:
        share = _growth_share(growth)
        before, after = growth.before_bytes / _MB, growth.after_bytes / _MB
        rows.append(
            Row(
                f"over {growth.requests:,} requests",
                f"{before:.1f} MB to {after:.1f} MB, {share:+.1%}",
                f"no growth (<= {SAME_LEVEL:.0%})",
                share <= SAME_LEVEL,
            )
        )
    return Section("Resident memory of coordinator and node daemon together", tuple(rows))


def _notes(measured: Measured) -> list[str]:
    notes = [
        f"Figures are the median (lowest to highest) of {measured.sizes.repeats} repeats, taken in"
        f" turns. Other programs kept {measured.others_cores:.2f} of {os.cpu_count()} cores busy"
        f" meanwhile; load average {measured.load_average[0]:.1f} at the begin,"
        f" {measured.load_average[1]:.1f} at the end."
    ]
    if measured.num_answered != measured.num_sent:
        lost = measured.num_sent - measured.num_answered
        notes.append(f"{lost} of {measured.num_sent} requests were not answered with 200.")
    if measured.litellm_problem:
        notes.append(f"LiteLLM was not measured: {measured.litellm_problem}")
    elif measured.litellm_version:
        notes.append(f"LiteLLM {measured.litellm_version}, one worker, no database, no logging.")
    return notes
