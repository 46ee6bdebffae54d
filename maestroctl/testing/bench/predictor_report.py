"""Figures of `bench.predictor`: the share of latency, and what predictions add to a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from maestroctl.testing.bench.predictor_load import KINDS, Measured
from maestroctl.testing.bench.report import Row, Section
from maestroctl.testing.bench.stats import median, spread

SHARE_TARGET = 0.02
"""Of end-to-end latency."""


def share_of_latency(seen: Measured, kinds: Sequence[str]) -> float:
    """Seconds that requests waited for predictions over their seconds from end to end."""
    blocks = [block for kind in kinds for block in seen.of(kind, enabled=True)]
    return sum(b.asked.waited_s for b in blocks) / sum(sum(b.seconds) for b in blocks)


def added_s(seen: Measured, kind: str) -> list[float]:
    """Per round: mean latency with predictions less that without, of the same requests."""
    pairs = zip(seen.of(kind, enabled=True), seen.of(kind, enabled=False), strict=True)
    return [
        sum(on.seconds) / len(on.seconds) - sum(off.seconds) / len(off.seconds) for on, off in pairs
    ]


def served(seen: Measured, kind: str, *, enabled: bool) -> dict[str, int]:
    """Requests by the model that answered, over all rounds."""
    total: Counter[str] = Counter()
    for block in seen.of(kind, enabled=enabled):
        total.update(block.served)
    return dict(sorted(total.items()))


def make_figures(seen: Measured) -> dict[str, Any]:
    """Everything, for the line of JSON."""
    return {
        "requests": seen.requests,
        "rounds": seen.rounds,
        "share_of_latency": share_of_latency(seen, list(KINDS)),
        "predict_ms": seen.latency_ms,
        "predictions": seen.answered,
        "fallbacks": seen.fallbacks,
        "kinds": {kind: _kind_figures(seen, kind) for kind in KINDS},
    }


def _kind_figures(seen: Measured, kind: str) -> dict[str, Any]:
    blocks = seen.of(kind, enabled=True)
    total_s = sum(sum(block.seconds) for block in blocks)
    without = [s for block in seen.of(kind, enabled=False) for s in block.seconds]
    added = spread(added_s(seen, kind))
    mean_s = sum(without) / len(without)
    return {
        "share_of_latency": share_of_latency(seen, [kind]),
        "beside_share": sum(block.asked.beside_s for block in blocks) / total_s,
        "waited": sum(block.asked.waited for block in blocks),
        "went_on": sum(block.asked.beside for block in blocks),
        "median_s": {
            "with": median([s for block in blocks for s in block.seconds]),
            "without": median(without),
        },
        "served": {
            "with": served(seen, kind, enabled=True),
            "without": served(seen, kind, enabled=False),
        },
        "added_s": added.as_dict(),
        "added_share": added.median / mean_s,
    }


def make_sections(seen: Measured) -> list[Section]:
    """The table."""
    share = share_of_latency(seen, list(KINDS))
    ms = {name: value or float("nan") for name, value in seen.latency_ms.items()}
    rows = [
        Row("share of latency", f"{share:.2%}", f"{SHARE_TARGET:.0%}", share <= SHARE_TARGET),
        Row("a prediction", f"median {ms['median']:.2f} ms, p99 {ms['p99']:.2f} ms"),
        Row("fallbacks", f"{seen.fallbacks} of {seen.fallbacks + seen.answered}"),
    ]
    return [Section("All requests", tuple(rows))] + [_kind_section(seen, k) for k in KINDS]


def _kind_section(seen: Measured, kind: str) -> Section:
    figures = _kind_figures(seen, kind)
    share, added = figures["share_of_latency"], spread(added_s(seen, kind))
    target, met = f"{SHARE_TARGET:.0%}", share <= SHARE_TARGET
    rows = (
        Row("share of latency", f"{share:.2%}", target, met),
        Row("asked", f"{figures['waited']} waited, {figures['went_on']} went on"),
        Row("served by", " against ".join(map(_by_model, figures["served"].values()))),
        Row("with less without", f"{added:.3f} s, {figures['added_share']:.1%} of the mean"),
    )
    return Section(kind, rows)


def _by_model(counts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {model}" for model, count in counts.items()) or "-"


def make_notes() -> list[str]:
    """What to know about the figures."""
    return [
        "The share counts the asking alone. The router's own rules are part of a decision of the"
        " core, which bench-core times.",
        "With less without, in brackets the lowest and the highest round: what the machine does"
        " besides is in it, and is larger than a prediction. The share is not disturbed by that.",
    ]
