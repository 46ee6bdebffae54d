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
    for snapshot in snapshots:
        for engine in snapshot.engines:
            states[snapshot.node, engine.model, engine.status.value] += 1
    family = GaugeMetricFamily(
        "maestroctl_engines", "Engines in this state.", labels=("node", "model", "state")
    )
    for state, count in states.items():
        family.add_metric(state, count)
    yield family
    for field, name, help_ in _ENGINE_SUMS:
        sums: Counter[tuple[str, str]] = Counter()
        for snapshot in snapshots:
            for engine in snapshot.engines:
                sums[snapshot.node, engine.model] += getattr(engine, field)
        family = GaugeMetricFamily(name, help_, labels=("node", "model"))
        for place, value in sums.items():
            family.add_metric(place, value)
        yield family


_ENGINE_SUMS = (
    ("slots", "maestroctl_engine_slots", "Stages that engines of the model take at once."),
    (
        "num_running",
        "maestroctl_engine_running_stages",
        "Stages that engines of the model are working on.",
    ),
    (
        "kv_limit_bytes",
        "maestroctl_engine_kv_limit_bytes",
        "KV limit of the engines of the model, per device.",
    ),
    (
        "kv_booked_bytes",
        "maestroctl_engine_kv_booked_bytes",
        "Sequence bookings inside the KV limit.",
    ),
)
"""Field of `EngineSnapshot`, name, help."""
