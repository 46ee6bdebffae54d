"""Which engines may give way for another, and what each of them would free.

Never a victim: the requester itself, a pinned or unmanaged engine, one whose transition is in
flight, one that was activated for stages it has not served yet, one that already gives way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.node.degradation import LEVEL_SUSPEND
from maestroctl.scheduler.node.engine_state import EffectKind, EngineState, OrderCause
from maestroctl.scheduler.node.footprint import estimate_footprint
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus
REUSE_HORIZON_S = 60.0  # "soon" (assumed): a wake within this time is a cost of having slept
_AWAKE = (S.IDLE, S.ACTIVE, S.DRAINING)
_MAY_BE_CALLED_OFF = (S.STARTING, S.FALLING_ASLEEP)


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
            and not (engines[view.engine_id].pending and view.status in _AWAKE)
            and _may_give_way(engines[view.engine_id], later, since_s)
        ]

    def _all(self) -> list[VictimView]:
        """Every engine that anybody could ask, in order.

        Nothing that a pass does makes a view wrong: an engine that is told to give way, or begins
        a transition, is no candidate any more in this pass.
        """
        if self._ranked is None:
            state = self._state
            views = [
                view_victim(engine, state.now_s)
                for engine in state.engines.values()
                if engine.abilities.managed
                and not engine.pinned
                and state.books.holding(engine.engine_id)
                and (engine.pending is None or engine.status in _MAY_BE_CALLED_OFF)
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
    if engine.status is S.FALLING_ASLEEP:
        return engine.wanted_since_s() is None
    if engine.pending is not None:
        return False
    if engine.status in (S.SLEEPING, S.SUSPENDED):
        wanted = engine.wanted_since_s() is not None and engine.engine_id not in later
        return not engine.running and not wanted
    return engine.status in _AWAKE


def spare(views: Sequence[VictimView], rungs: Mapping[int, int]) -> list[VictimView]:
    """The views without the choices beyond level 3 whose harm the need does not justify."""
    kept = []
    for view in views:
        choices = tuple(
            c for c in view.choices if c.level < LEVEL_SUSPEND or c.harm <= rungs.get(c.level, -1)
        )
        kept.append(view if len(choices) == len(view.choices) else replace(view, choices=choices))
    return kept


def may_sleep_once_served(engine: EngineState) -> bool:
    """Awake and protected by stages it was activated for; a victim as soon as they have ended."""
    return (
        engine.status.is_awake
        and bool(engine.num_protected and engine.running)
        and engine.abilities.managed
        and not engine.pinned
    )


@dataclass(slots=True)
class Shape:
    """What an engine holds and could free as it is: all of a view that time does not change.

    Attributes:
        key: what it was made of; another key, another shape.
        held_bytes: booked at rest, over all devices.
        stop: freed by its end; of one that is falling asleep, what will be left of it then.
        sleeps: (tier, freed) of each tier it can sleep at, mildest first.
        suspend: (tier, freed); None when it cannot.
        at_rest: its view while nobody asks for it.
    """

    key: object
    held_bytes: int
    stop: Mapping[DeviceName, int]
    sleeps: tuple[tuple[ResidencyTier, Mapping[DeviceName, int]], ...]
    suspend: tuple[ResidencyTier, Mapping[DeviceName, int]] | None
    at_rest: VictimView | None = None


def _shape_of(engine: EngineState) -> Shape:
    """The engine's shape, made anew only when what it depends on has changed."""
    tier = engine.pending.tier if engine.pending is not None else ResidencyTier.DISK
    key = (
        engine.status,
        engine.tier,
        tier,
        engine.devices,
        engine.kv_limit_bytes,
        engine.reading_bytes,
        engine.host_reading_bytes,
        engine.last_used_s,
    )
    shape = engine.shape
    if isinstance(shape, Shape) and shape.key == key:
        return shape
    if engine.status is S.FALLING_ASLEEP:
        stop = footprint_after(engine, S.SLEEPING, tier)
    else:
        stop = freed_by(engine, S.STOPPED, ResidencyTier.DISK)
    tiers = _sleep_tiers(engine) if engine.status in _AWAKE else []
    suspend = None
    if engine.abilities.can_suspend:
        deepest = ResidencyTier.HOST if engine.abilities.can_sleep_host else ResidencyTier.DISK
        suspend = (deepest, freed_by(engine, S.SUSPENDED, deepest))
    engine.shape = shape = Shape(
        key=key,
        held_bytes=sum(_held(engine).values()),
        stop=stop,
        sleeps=tuple((tier, freed_by(engine, S.SLEEPING, tier)) for tier in tiers),
        suspend=suspend,
    )
    return shape


def view_victim(engine: EngineState, now_s: float) -> VictimView:
    """A frozen copy with the chain of choices the engine has.

    One that nobody has asked for lately looks the same at any time and is not copied again.
    """
    shape = _shape_of(engine)
    rate = engine.arrival_rate(now_s)
    if rate or engine.is_of_interest:
        return _make_view(engine, shape, rate, now_s)
    if shape.at_rest is None:
        shape.at_rest = _make_view(engine, shape, rate, now_s)
    return shape.at_rest


def _make_view(engine: EngineState, shape: Shape, rate: float, now_s: float) -> VictimView:
    return VictimView(
        engine_id=engine.engine_id,
        model=engine.model,
        status=engine.status,
        tier=engine.tier,
        busy=bool(engine.running) or engine.status is S.STARTING,
        leaving=engine.give_way is not None and engine.give_way.cause is not OrderCause.HAND,
        last_used_s=engine.last_used_s,
        interactive=any(
            stage.service_class is ServiceClass.INTERACTIVE
            for stages in (engine.running, engine.waiting)
            for stage in stages.values()
        ),
        choices=tuple(_list_choices(engine, shape, rate, now_s)),
        value_per_byte=estimate_value_per_byte(engine, rate, shape.held_bytes),
    )


def _list_choices(
    engine: EngineState, shape: Shape, rate: float, now_s: float
) -> list[GiveWayChoice]:
    profile = engine.need_profile()
    chance = estimate_reuse_chance(engine, rate, now_s)
    # The paper's cold start - wake, for the chance that it is needed: or a model that nobody asks
    # for would be as dear as one in constant use.
    stop_cost_s = max(0.0, profile.cold_start_s - profile.wake_s) * chance
    if engine.status is S.FALLING_ASLEEP:
        return [GiveWayChoice(3, GiveWayAction.STOP, shape.stop, stop_cost_s)]
    if engine.status is S.STARTING:
        return [GiveWayChoice(3, GiveWayAction.KILL_START, shape.stop, profile.cold_start_s)]
    choices = []
    drain_s = engine.drain_s(now_s) if engine.running else 0.0  # whoever waits, waits for it
    if engine.status in _AWAKE:
        for tier, freed in shape.sleeps:
            cost_s = profile.wake_s * chance + drain_s
            choices.append(GiveWayChoice(1, GiveWayAction.SLEEP, freed, cost_s, tier))
        stop_cost_s += profile.wake_s * chance
    choices.append(GiveWayChoice(2, GiveWayAction.STOP, shape.stop, stop_cost_s + drain_s))
    if engine.running:
        choices += _list_hard_choices(engine, shape, now_s)
    return choices


def _list_hard_choices(engine: EngineState, shape: Shape, now_s: float) -> list[GiveWayChoice]:
    """Levels 4 and 5, for an engine with open stages."""
    profile = engine.need_profile()
    running = engine.running.values()
    interactive = any(stage.service_class is ServiceClass.INTERACTIVE for stage in running)
    choices = []
    if shape.suspend is not None:
        tier, freed = shape.suspend
        prefill_s = sum(profile.iteration.cp_s * _tokens(engine, s.kv_bytes) for s in running)
        cost_s = profile.wake_s * len(running) + prefill_s
        harm = int(interactive)
        choices.append(GiveWayChoice(4, GiveWayAction.SUSPEND, freed, cost_s, tier, harm))
    lost_s = sum(max(0.0, now_s - stage.started_s) for stage in running)
    harm = int(interactive) + 2 * any(stage.first_byte for stage in running)
    cost_s = profile.cold_start_s + lost_s
    choices.append(GiveWayChoice(5, GiveWayAction.ABORT, shape.stop, cost_s, harm=harm))
    return choices


def _tokens(engine: EngineState, kv_bytes: int) -> float:
    return kv_bytes / max(1, engine.need_profile().kv_bytes_per_token)


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


def estimate_reuse_chance(engine: EngineState, rate: float, now_s: float) -> float:
    """Chance that a stage for the model comes soon, from its rate of arrivals or from advice."""
    chance = 1.0 - exp(-rate * REUSE_HORIZON_S)
    advice = engine.advice
    if advice is not None and now_s - advice.expected_s < REUSE_HORIZON_S:
        chance = max(chance, advice.probability)
    return chance


def estimate_value_per_byte(engine: EngineState, rate: float, held_bytes: int) -> float:
    """What keeping the engine as it is is worth (Algorithm 1), seconds per byte held.

    Expected arrivals within its activation time x activation seconds / bytes.
    """
    profile = engine.need_profile()
    asleep = engine.status in (S.SLEEPING, S.SUSPENDED)
    comes_back_by_wake = not asleep and engine.abilities.can_sleep
    activation_s = profile.wake_s if comes_back_by_wake else profile.cold_start_s
    return rate * activation_s * activation_s / max(1, held_bytes)
