"""The values that hold, and where each came from: what ``config show`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from maestroctl.config import fleet_tables as schema
from maestroctl.config.fleet import LoadedFleet
from maestroctl.config.source import Origin
from maestroctl.config.tables import Table


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One line of ``config show``.

    Attributes:
        key: key path, names in place of positions.
        value: as it would stand in a file; secrets masked.
    """

    key: str
    value: str
    origin: Origin


def effective_values(loaded: LoadedFleet) -> list[EffectiveValue]:
    """Every key of the fleet, in the order of the reference."""
    return [
        EffectiveValue(f"{prefix}.{key.name}", key.show(key.value_in(spec)), origin)
        for prefix, table, spec in _instances(loaded)
        for key in table.keys
        for origin in [loaded.origin(f"{prefix}.{key.name}")]
    ]


def _instances(loaded: LoadedFleet) -> Iterator[tuple[str, Table, Any]]:
    fleet = loaded.spec
    yield "coordinator", schema.COORDINATOR, fleet.coordinator
    yield "policy", schema.POLICY, fleet.policy
    yield "tools", schema.TOOLS, fleet.tools
    yield "event_log", schema.EVENT_LOG, fleet.event_log
    yield "predictor", schema.PREDICTOR, fleet.predictor
    for name, engine in fleet.engines.items():
        yield f"engine.{name}", schema.ENGINE, engine
    for cluster in fleet.clusters.values():
        yield f"cluster[{cluster.name}]", schema.CLUSTER, cluster
    for node in fleet.nodes.values():
        yield f"node[{node.name}]", schema.NODE, node
    for group in fleet.groups.values():
        yield f"group[{group.name}]", schema.GROUP, group
    for model in fleet.models.values():
        yield f"model[{model.name}]", schema.MODEL, model
