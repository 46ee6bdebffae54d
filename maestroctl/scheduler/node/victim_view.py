"""An engine as one that may give way: its chain of choices, what each frees and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.node.engine_state import EngineState, OrderCause
from maestroctl.scheduler.node.freed import footprint_after, footprint_at_rest, freed_by
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView

S = EngineStatus
REUSE_HORIZON_S = 60.0  # "soon" (assumed): a wake within this time is a cost of having slept
_AWAKE = (S.IDLE, S.ACTIVE, S.DRAINING)


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
        held_bytes=sum(footprint_at_rest(engine).values()),
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
