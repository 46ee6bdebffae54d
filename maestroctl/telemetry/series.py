"""Counting for the hot path: plain numbers, turned into metric families only when asked.

`prometheus_client`'s own counters cost about a microsecond per label lookup and one per update; a
stage would need ten of them. Here an update is one dictionary lookup and one addition.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric


class CounterSeries:
    """One counter over label values. Updated by one thread."""

    __slots__ = ("counts", "help", "labels", "name")

    def __init__(self, name: str, help_: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.help = help_
        self.labels = labels
        self.counts: dict[tuple[str, ...], float] = {}

    def add(self, values: tuple[str, ...], amount: float = 1) -> None:
        """Count `amount` for these label values, in the order of `labels`."""
        self.counts[values] = self.counts.get(values, 0) + amount

    def family(self) -> Metric:
        """What Prometheus is told."""
        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, count in self.counts.items():
            family.add_metric(values, count)
        return family


class HistogramSeries:
    """One histogram over label values. Updated by one thread.

    Args:
        bounds: rising upper bounds of the buckets, in the metric's unit.
    """

    __slots__ = ("bounds", "help", "labels", "name", "series")

    def __init__(
        self, name: str, help_: str, labels: tuple[str, ...], bounds: tuple[float, ...]
    ) -> None:
        self.name = name
        self.help = help_
        self.labels = labels
        self.bounds = bounds
        self.series: dict[tuple[str, ...], list[float]] = {}
        """Label values -> counts per bucket (not cumulative, the last one unbounded), then sum."""

    def observe(self, values: tuple[str, ...], value: float) -> None:
        """Count one `value` for these label values."""
        found = self.series.get(values)
        if found is None:
            found = self.series[values] = [0.0] * (len(self.bounds) + 2)
        found[bisect_left(self.bounds, value)] += 1
        found[-1] += value

    def family(self) -> Metric:
        """What Prometheus is told."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        limits = [repr(bound) for bound in self.bounds] + ["+Inf"]
        for values, found in self.series.items():
            total = 0.0
            buckets = []
            for limit, count in zip(limits, found, strict=False):
                total += count
                buckets.append((limit, total))
            family.add_metric(values, buckets, found[-1])
        return family


def counters_of(name: str, help_: str, label: str, counts: Mapping[str, float]) -> Iterator[Metric]:
    """A counter kept elsewhere, by one label."""
    family = CounterMetricFamily(name, help_, labels=(label,))
    for value, count in counts.items():
        family.add_metric((value,), count)
    yield family
