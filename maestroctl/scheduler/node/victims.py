"""Which engines may give way for another, and what each of them would free.

Never a victim: the requester itself, a pinned or unmanaged engine, one whose transition is in
flight, one that was activated for stages it has not served yet, one that already gives way.
"""

from __future__ import annotations

from collections.abc import Collection
from math import exp

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.node.engine_state import EffectKind, EngineState, OrderCause
from maestroctl.scheduler.node.footprint import estimate_footprint
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus
REUSE_DECAY_S = 300.0  # an engine idle this long is used again soon with chance 1/e (assumed)
_AWAKE = (S.IDLE, S.ACTIVE, S.DRAINING)


class VictimPool:
    """Engines that may give way, ranked once for one reconciliation pass."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._ranked: list[VictimView] | None = None

    def rank(
        self,
        requester: EngineId | None,
        later: Collection[EngineId] = (),
        since_s: float | None = None,
    ) -> list[VictimView]:
        """Those that may give way for `requester`, first to go first.

        Args:
            requester: whose need it is; None when it is the budget's.
            later: engines whose own waiters come after the requester's: asleep, they may be
                stopped.
            since_s: since when the requester waits: starts for younger waiters may be called off.
        """
        engines = self._state.engines
        return [
            view
            for view in self._all()
            if view.engine_id != requester
            and _may_give_way(engines[view.engine_id], later, since_s)
        ]

    def _all(self) -> list[VictimView]:
        """Every engine that anybody could ask, in order.

        Nothing that a pass does makes a view wrong: an engine that is told to give way, or begins
        a transition, is no candidate any more.
        """
        if self._ranked is None:
            state = self._state
            views = [
                view_victim(engine, state.now_s)
                for engine in state.engines.values()
                if engine.abilities.managed
                and not engine.pinned
                and state.books.holding(engine.engine_id)
                and (engine.pending is None or engine.status is S.STARTING)
                and engine.status is not S.STOPPING
            ]
            self._ranked = state.residency.rank_victims(views, state.now_s)
        return self._ranked


def _may_give_way(engine: EngineState, later: Collection[EngineId], since_s: float | None) -> bool:
    if engine.num_protected and engine.running:
        return False  # its stages are held back by an overrun otherwise: it may have to make room
    if engine.give_way is not None and engine.give_way.confirmed:
        return False
    if engine.status is S.STARTING:
        wanted_s = engine.wanted_since_s()
        return wanted_s is None or (since_s is not None and since_s < wanted_s)
    if engine.pending is not None:
        return False
    if engine.status in (S.SLEEPING, S.SUSPENDED):
        wanted = engine.wanted_since_s() is not None and engine.engine_id not in later
        return not engine.running and not wanted
    return engine.status in _AWAKE


def may_sleep_once_served(engine: EngineState) -> bool:
    """Awake and protected by stages it was activated for; a victim as soon as they have ended."""
    return (
        engine.status.is_awake
        and bool(engine.num_protected and engine.running)
        and engine.abilities.managed
        and not engine.pinned
    )


def view_victim(engine: EngineState, now_s: float) -> VictimView:
    """A frozen copy with the chain of choices the engine has."""
    open_stages = [*engine.running.values(), *engine.waiting.values()]
    return VictimView(
        engine_id=engine.engine_id,
        model=engine.model,
        status=engine.status,
        tier=engine.tier,
        busy=bool(engine.running) or engine.status is S.STARTING,
        leaving=engine.give_way is not None and engine.give_way.cause is not OrderCause.HAND,
        last_used_s=engine.last_used_s,
        held_bytes=_held(engine),
        interactive=any(s.service_class is ServiceClass.INTERACTIVE for s in open_stages),
        choices=tuple(_list_choices(engine, now_s)),
    )


def _list_choices(engine: EngineState, now_s: float) -> list[GiveWayChoice]:
    profile = engine.need_profile()
    stop_cost_s = max(0.0, profile.cold_start_s - profile.wake_s)
    stop = freed_by(engine, S.STOPPED, ResidencyTier.DISK)
    if engine.status is S.STARTING:
        return [GiveWayChoice(3, GiveWayAction.KILL_START, stop, profile.cold_start_s)]
    choices = []
    if engine.status in _AWAKE:
        cost_s = profile.wake_s * estimate_reuse_chance(engine, now_s)
        for tier in _sleep_tiers(engine):
            freed = freed_by(engine, S.SLEEPING, tier)
            choices.append(GiveWayChoice(1, GiveWayAction.SLEEP, freed, cost_s, tier))
        stop_cost_s = profile.cold_start_s
    choices.append(GiveWayChoice(2, GiveWayAction.STOP, stop, stop_cost_s))
    if engine.running:
        choices += _list_hard_choices(engine)
    return choices


def _list_hard_choices(engine: EngineState) -> list[GiveWayChoice]:
    """Levels 4 and 5, for an engine with open stages."""
    profile = engine.need_profile()
    choices = []
    if engine.abilities.can_suspend:
        tier = ResidencyTier.HOST if engine.abilities.can_sleep_host else ResidencyTier.DISK
        cost_s = (profile.wake_s + profile.sleep_s) * len(engine.running)
        freed = freed_by(engine, S.SUSPENDED, tier)
        choices.append(GiveWayChoice(4, GiveWayAction.SUSPEND, freed, cost_s, tier))
    cost_s = profile.cold_start_s * len(engine.running)
    freed = freed_by(engine, S.STOPPED, ResidencyTier.DISK)
    choices.append(GiveWayChoice(5, GiveWayAction.ABORT, freed, cost_s))
    return choices


def _sleep_tiers(engine: EngineState) -> list[ResidencyTier]:
    tiers = []
    if engine.abilities.can_sleep_host:
        tiers.append(ResidencyTier.HOST)
    if engine.abilities.can_sleep_disk:
        tiers.append(ResidencyTier.DISK)
    return tiers


def _held(engine: EngineState) -> dict[DeviceName, int]:
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
    return _difference(_held(engine), footprint_after(engine, status, tier))


def footprint_after(
    engine: EngineState, status: EngineStatus, tier: ResidencyTier
) -> dict[DeviceName, int]:
    """What the engine is expected to hold in a `status` that it has yet to reach."""
    return estimate_footprint(
        engine.need_profile(), status, tier, engine.devices, engine.kv_limit_bytes
    )


def _difference(
    before: dict[DeviceName, int], after: dict[DeviceName, int]
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


def estimate_reuse_chance(engine: EngineState, now_s: float) -> float:
    """Chance that the engine is used again soon: falls with the time since its last use."""
    return exp(-max(0.0, now_s - engine.last_used_s) / REUSE_DECAY_S)
