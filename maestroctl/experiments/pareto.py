"""Points of latency against quality: who dominates whom, and by how much a frontier leads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
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
    """Quality of the frontier of `points` at the latency of `other`, minus that of `other`.

    None where every point is slower.
    """
    frontier, x = _frontier(points), math.log(other.latency_s)
    return _at(frontier, x) - other.quality if frontier[0][0] <= x else None


def mean_lead(points: Sequence[Point], others: Sequence[Point], steps: int = 50) -> float | None:
    """By how much the frontier of `points` lies above that of `others`, in quality.

    The mean over the latencies that both reach, equally spaced on a log scale; frontiers are
    straight there between their points. None where they have no latency in common.
    """
    first, second = _frontier(points), _frontier(others)
    low = max(first[0][0], second[0][0])
    high = min(first[-1][0], second[-1][0])
    if low >= high:
        return None
    places = [low + (high - low) * step / steps for step in range(steps + 1)]
    return sum(_at(first, x) - _at(second, x) for x in places) / len(places)


def _frontier(points: Sequence[Point]) -> list[tuple[float, float]]:
    """(log latency, quality) of the points that none dominates, by latency."""
    found: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (point.latency_s, -point.quality)):
        if not found or point.quality > found[-1][1]:
            found.append((math.log(point.latency_s), point.quality))
    return found


def _at(frontier: Sequence[tuple[float, float]], x: float) -> float:
    for (x0, y0), (x1, y1) in pairwise(frontier):
        if x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return frontier[-1][1]
