"""Begin what changes memory: start, wake, resume, sleep, suspend, stop.

Theory of operation. ``begin_*`` books first (Eq 4), then moves the engine, notes the effect in
flight with a fresh id and emits it. What becomes of it is in `transition_results`. An engine whose
state is not trusted goes to STOPPING and keeps its booking until the host has verified that the
process group is gone.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import (
    ResumeEngine,
    SetKvLimit,
    SleepEngine,
    StartEngine,
    StopEngine,
    SuspendEngine,
    WakeEngine,
)
from maestroctl.scheduler.node.engine_state import EffectKind, EngineState, GiveWayOrder
from maestroctl.scheduler.node.stages import abort_and_forget
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus


def begin_start(
    state: NodeState, engine: EngineState, devices: tuple[DeviceName, ...], kv_limit_bytes: int
) -> None:
    """Start the process on `devices` with this KV limit; the memory must be free."""
    engine.devices = devices
    engine.kv_limit_bytes = engine.kv_base_bytes = kv_limit_bytes
    state.books.book(engine.engine_id, state.footprint(engine, S.STARTING))
    state.move(engine, S.STARTING, "memory booked")
    engine.generation += 1
    engine.last_good_s = None
    state.stats.starts += 1
    effect_id = state.issue(engine, EffectKind.START, ResidencyTier.DEVICE)
    state.effects.append(
        StartEngine(
            engine.engine_id,
            engine.model,
            engine.generation,
            effect_id,
            devices,
            kv_limit_bytes,
        )
    )


def begin_wake(state: NodeState, engine: EngineState) -> None:
    """Bring a sleeping engine back; the memory must be free."""
    state.books.book(engine.engine_id, state.footprint(engine, S.WAKING))
    state.move(engine, S.WAKING, "memory booked")
    engine.last_good_s = None
    state.stats.wakes += 1
    effect_id = state.issue(engine, EffectKind.WAKE, ResidencyTier.DEVICE)
    state.effects.append(WakeEngine(engine.engine_id, engine.generation, effect_id))


def begin_resume(state: NodeState, engine: EngineState) -> None:
    """Bring a suspended engine back; the memory must be free."""
    state.books.book(engine.engine_id, state.footprint(engine, S.RESUMING))
    state.move(engine, S.RESUMING, "memory booked")
    state.stats.resumes += 1
    effect_id = state.issue(engine, EffectKind.RESUME, ResidencyTier.DEVICE)
    state.effects.append(ResumeEngine(engine.engine_id, engine.generation, effect_id))


def begin_sleep(state: NodeState, engine: EngineState, why: str) -> None:
    """Put an empty, awake engine to sleep; one that cannot (any more) is stopped instead."""
    tier = choose_sleep_tier(state, engine)
    if tier is None:
        begin_stop(state, engine, why)
        return
    _reset_kv_limit(state, engine)
    state.books.book(engine.engine_id, state.footprint(engine, S.FALLING_ASLEEP, tier))
    _begin_giving_way(engine)
    state.move(engine, S.FALLING_ASLEEP, why)
    state.stats.sleeps += 1
    effect_id = state.issue(engine, EffectKind.SLEEP, tier)
    state.effects.append(SleepEngine(engine.engine_id, engine.generation, effect_id, tier))


def begin_suspend(state: NodeState, engine: EngineState, why: str) -> bool:
    """Freeze the open requests of an engine and drop its weights and KV.

    False = its weights would go to host memory that is not free (any more); nothing was changed.
    """
    tier = ResidencyTier.HOST if engine.abilities.can_sleep_host else ResidencyTier.DISK
    wanted = state.footprint(engine, S.SUSPENDING, tier)
    if not state.books.fits(engine.engine_id, wanted):
        return False
    state.books.book(engine.engine_id, wanted)
    _begin_giving_way(engine)
    state.move(engine, S.SUSPENDING, why)
    state.stats.suspends += 1
    effect_id = state.issue(engine, EffectKind.SUSPEND, tier)
    state.effects.append(SuspendEngine(engine.engine_id, engine.generation, effect_id))
    return True


def begin_stop(state: NodeState, engine: EngineState, why: str) -> None:
    """End the process, whatever it is doing; what it holds stays booked until it is gone."""
    state.unlock(engine)
    _begin_giving_way(engine)
    state.move(engine, S.STOPPING, why)
    engine.stop_failures = 0
    engine.stop_retry_s = state.now_s
    state.stats.stops += 1
    issue_stop(state, engine)


def issue_stop(state: NodeState, engine: EngineState) -> None:
    """Tell a STOPPING engine to go, when its devices are free and its retry is due.

    During a shutdown nothing starts any more, so stops need not wait for each other.
    """
    locked = state.is_locked(engine)
    if engine.pending is not None or state.now_s < engine.stop_retry_s:
        return
    if locked and state.shutdown is None:
        return
    effect_id = state.issue(engine, EffectKind.STOP, engine.tier, lock=not locked)
    state.effects.append(StopEngine(engine.engine_id, engine.generation, effect_id))


def choose_sleep_tier(state: NodeState, engine: EngineState) -> ResidencyTier | None:
    """HOST when the engine can and host memory is free, else DISK, else None."""
    if engine.abilities.can_sleep_host:
        wanted = state.footprint(engine, S.FALLING_ASLEEP, ResidencyTier.HOST)
        if state.books.fits(engine.engine_id, wanted):
            return ResidencyTier.HOST
    return ResidencyTier.DISK if engine.abilities.can_sleep_disk else None


def drain(state: NodeState, engine: EngineState, order: GiveWayOrder) -> None:
    """Take nothing new on an awake engine until it has given way."""
    engine.give_way = order
    if engine.status in (S.IDLE, S.ACTIVE):
        state.move(engine, S.DRAINING, f"has to {order.action}: {order.cause}")


def abort_frozen(state: NodeState, engine: EngineState, outcome: Outcome, reason: str) -> None:
    """End the requests frozen in a suspended engine."""
    for stage in list(engine.running.values()):
        abort_and_forget(state, engine, stage, outcome, reason)


def _begin_giving_way(engine: EngineState) -> None:
    engine.give_way = None
    engine.idle_since_s = None
    engine.prewarm_expected_s = None
    engine.prewarm_until_s = None


def _reset_kv_limit(state: NodeState, engine: EngineState) -> None:
    if engine.kv_limit_bytes != engine.kv_base_bytes:
        engine.kv_limit_bytes = engine.kv_base_bytes
        state.effects.append(SetKvLimit(engine.engine_id, engine.generation, engine.kv_limit_bytes))
