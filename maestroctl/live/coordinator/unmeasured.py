"""Says once which models are served on costs that nobody has measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from maestroctl.domain.profile import GEOMETRY
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.live.coordinator.host import CoordinatorHost


async def tell_unmeasured(host: CoordinatorHost, tell: Callable[[str], None]) -> None:
    """Watch until every node has said what its models cost; each model is told of once.

    Args:
        tell: gets one line per node that has such models.
    """
    waiting, told = set(host.fleet.nodes), set[str]()
    async for event in host.bus.watch(None):
        if event["type"] != "node" or event["node"] not in waiting:
            continue
        waiting.discard(event["node"])
        snapshot = host.snapshots.get(event["node"])
        line = None if snapshot is None else describe_unmeasured(snapshot, told)
        if line is not None:
            tell(line)
        if not waiting:
            return


def describe_unmeasured(snapshot: NodeSnapshot, told: set[str]) -> str | None:
    """The line for one node, or None; `told` gets the models that it names."""
    models = [p.model for p in snapshot.profiles if p.origin == GEOMETRY and p.model not in told]
    if not models:
        return None
    told.update(models)
    return (
        f"Costs of {_names(models)} are estimated from geometry and corrected by what is observed;"
        " `maestroctl profile` measures them."
    )


def _names(models: Iterable[str]) -> str:
    names = list(models)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
