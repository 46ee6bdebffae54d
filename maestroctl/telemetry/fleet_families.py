"""What a fleet snapshot looks like to Prometheus. Works on render only, never on the hot path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from maestroctl.domain.snapshot import NodeSnapshot


def fleet_families(snapshots: Sequence[NodeSnapshot]) -> Iterator[Metric]:
    """Gauges of nodes, devices and engines."""
    yield GaugeMetricFamily("maestroctl_nodes", "Nodes that are connected.", value=len(snapshots))
    yield from _devices(snapshots)
    yield from _engines(snapshots)


def _devices(snapshots: Sequence[NodeSnapshot]) -> Iterator[Metric]:
    labels = ("node", "device")
    budget = GaugeMetricFamily(
        "maestroctl_device_budget_bytes", "What models may use on the device now.", labels=labels
    )
    booked = GaugeMetricFamily(
        "maestroctl_device_booked_bytes", "What is booked on the device.", labels=labels
    )
    used = GaugeMetricFamily(
        "maestroctl_device_used_bytes", "Last reading of what engines really hold.", labels=labels
    )
    for snapshot in snapshots:
        for device in snapshot.devices:
            values = (snapshot.node, device.device)
            budget.add_metric(values, device.budget_bytes)
            booked.add_metric(values, device.booked_bytes)
            if device.used_bytes is not None:
                used.add_metric(values, device.used_bytes)
    yield from (budget, booked, used)


def _engines(snapshots: Sequence[NodeSnapshot]) -> Iterator[Metric]:
    states: Counter[tuple[str, str, str]] = Counter()
    totals: dict[tuple[str, str], list[int]] = {}
    for snapshot in snapshots:
        for engine in snapshot.engines:
            states[snapshot.node, engine.model, engine.status.value] += 1
            sums = totals.setdefault((snapshot.node, engine.model), [0, 0, 0])
            sums[0] += engine.num_running
            sums[1] += engine.kv_limit_bytes
            sums[2] += engine.kv_booked_bytes
    family = GaugeMetricFamily(
        "maestroctl_engines", "Engines in this state.", labels=("node", "model", "state")
    )
    for state, count in states.items():
        family.add_metric(state, count)
    yield family
    for index, (name, help_) in enumerate(_ENGINE_SUMS):
        family = GaugeMetricFamily(name, help_, labels=("node", "model"))
        for key, sums in totals.items():
            family.add_metric(key, sums[index])
        yield family


_ENGINE_SUMS = (
    ("maestroctl_engine_running_stages", "Stages that engines of the model are working on."),
    ("maestroctl_engine_kv_limit_bytes", "KV limit of the engines of the model, per device."),
    ("maestroctl_engine_kv_booked_bytes", "Sequence bookings inside the KV limit."),
)
