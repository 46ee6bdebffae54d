"""Figures of a benchmark: percentiles of one run, spread over repeated runs.

A figure is reported as the median over repeats with its lowest and highest value, because on a
shared machine one run says little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` of the values lie, interpolated between neighbours.

    Args:
        values: at least one, in any order.
        percent: 0 to 100.

    Raises:
        ValueError: no values, or a percent outside its range.
    """
    if not values:
        raise ValueError("a percentile of no values")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percent is 0 to 100, got {percent}")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below, above = math.floor(place), math.ceil(place)
    low, high = ordered[below], ordered[above]
    return low if low == high else low + (high - low) * (place - below)


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones when their number is even."""
    return percentile(values, 50)


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Every field but ``count`` is in the unit of the values."""

    count: int
    mean: float
    min: float
    median: float
    p90: float
    p99: float
    max: float

    def as_dict(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


def summarize(values: Sequence[float]) -> Summary:
    """Percentiles of one run.

    Raises:
        ValueError: no values.
    """
    ordered = sorted(values)
    return Summary(
        count=len(ordered),
        mean=sum(ordered) / len(ordered) if ordered else math.nan,
        min=percentile(ordered, 0),
        median=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=percentile(ordered, 100),
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over repeated runs."""

    median: float
    low: float
    high: float
    repeats: int

    @property
    def relative(self) -> float:
        """Distance from lowest to highest as a share of the median; 0 for one run."""
        return 0.0 if self.high == self.low else (self.high - self.low) / abs(self.median)

    def as_dict(self) -> dict[str, float]:
        """The fields by name, the relative spread included."""
        return {**asdict(self), "relative": self.relative}

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of one figure over repeated runs.

    Raises:
        ValueError: no values.
    """
    return Spread(median(values), min(values), max(values), len(values))


def milliseconds(values_s: Sequence[float]) -> dict[str, float] | None:
    """Summary of times in milliseconds; None of nothing."""
    if not values_s:
        return None
    return summarize([value * 1000 for value in values_s]).as_dict()
