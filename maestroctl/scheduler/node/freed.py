"""What an engine holds, and what comes back when it gives way."""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName
from maestroctl.scheduler.node.engine_state import EffectKind, EngineState
from maestroctl.scheduler.node.footprint import estimate_footprint
from maestroctl.scheduler.node.residency import GiveWayAction
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus


def footprint_at_rest(engine: EngineState) -> dict[DeviceName, int]:
    """What the engine has booked at rest."""
    return estimate_footprint(
        engine.need_profile(),
        engine.status,
        engine.tier,
        engine.devices,
        engine.kv_limit_bytes,
        engine.reading_bytes,
        engine.host_reading_bytes,
    )


def freed_by(
    engine: EngineState, status: EngineStatus, tier: ResidencyTier
) -> dict[DeviceName, int]:
    """Bytes freed per device were the engine, at rest now, in `status`; negative = taken."""
    return _difference(footprint_at_rest(engine), footprint_after(engine, status, tier))


def footprint_after(
    engine: EngineState, status: EngineStatus, tier: ResidencyTier
) -> dict[DeviceName, int]:
    """What the engine is expected to hold in a `status` that it has yet to reach."""
    return estimate_footprint(
        engine.need_profile(), status, tier, engine.devices, engine.kv_limit_bytes
    )


def _difference(
    before: Mapping[DeviceName, int], after: Mapping[DeviceName, int]
) -> dict[DeviceName, int]:
    devices = dict.fromkeys((*before, *after))
    freed = {device: before.get(device, 0) - after.get(device, 0) for device in devices}
    return {device: num_bytes for device, num_bytes in freed.items() if num_bytes}


_ENDS = {
    EffectKind.SLEEP: S.SLEEPING,
    EffectKind.SUSPEND: S.SUSPENDED,
    EffectKind.STOP: S.STOPPED,
}


def coming_from(state: NodeState, engine: EngineState) -> dict[DeviceName, int]:
    """Bytes that a give-way under way, or ordered by hand, will free; never negative.

    A process that did not go when told to is not counted on.
    """
    if not engine.abilities.managed or engine.is_stuck:
        return {}
    held = state.books.holding(engine.engine_id)
    pending = engine.pending
    order = engine.give_way
    after: dict[DeviceName, int] = {}
    if pending is not None and pending.kind in _ENDS:
        after = footprint_after(engine, _ENDS[pending.kind], pending.tier)
    elif engine.status is S.STOPPING:
        pass
    elif pending is None and order is not None and order.confirmed:
        asleep = order.action is GiveWayAction.SLEEP
        status = S.SLEEPING if asleep else S.STOPPED
        after = footprint_after(engine, status, ResidencyTier.DISK)
    else:
        return {}
    return {d: freed for d, freed in _difference(held, after).items() if freed > 0}


def is_immovable(engine: EngineState) -> bool:
    """Its memory will not come back for anybody: pinned, or it will not go."""
    return engine.pinned or engine.is_stuck
