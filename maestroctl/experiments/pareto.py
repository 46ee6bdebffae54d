"""Points of latency against quality: who dominates whom, and by how much a frontier leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """One system at one setting; lower latency and higher quality are better."""

    name: str
    latency_s: float
    quality: float


def dominates(first: Point, second: Point) -> bool:
    """`first` is at least as good in both and better in one."""
    return (
        first.latency_s <= second.latency_s
        and first.quality >= second.quality
        and (first.latency_s < second.latency_s or first.quality > second.quality)
    )


def dominated(points: Sequence[Point], others: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(point, the other that dominates it), for every pair."""
    return [(point, other) for point in points for other in others if dominates(other, point)]


def uncovered(points: Sequence[Point], others: Sequence[Point]) -> list[Point]:
    """Those of `others` that no point matches in latency and quality together."""
    return [
        other
        for other in others
        if not any(p.latency_s <= other.latency_s and p.quality >= other.quality for p in points)
    ]


def speedup_at_quality(points: Sequence[Point], other: Point) -> float | None:
    """Latency of `other` over that of the fastest point of at least its quality; None = no such."""
    fast = [point.latency_s for point in points if point.quality >= other.quality]
    return other.latency_s / min(fast) if fast else None


def gain_at_latency(points: Sequence[Point], other: Point) -> float | None:
    """Quality of the best point that is no slower than `other`, minus that of `other`."""
    good = [point.quality for point in points if point.latency_s <= other.latency_s]
    return max(good) - other.quality if good else None
