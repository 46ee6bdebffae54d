"""What became of a transition: finished and verified, failed, or the process exited.

Whatever comes with an older generation or effect id is stale; a result that was never asked for is
a bug. After a failure the engine backs off (1, 2, 4 s) and is started again on demand only; after
the third in a row it is FAILED. A process that will not go keeps its booking for good, and is told
again with a growing delay.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineReadings, EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, EngineId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.events import EngineExited, TransitionFailed, TransitionFinished
from maestroctl.scheduler.node.engine_state import EffectKind, EngineState, PendingEffect
from maestroctl.scheduler.node.requests import fail_requests, settle_requests
from maestroctl.scheduler.node.stages import (
    COOL_DOWN_S,
    abort_and_forget,
    forward_waiters,
    protect_waiters,
    refuse_waiters,
)
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transitions import begin_stop, drain, issue_stop

MAX_FAILURES = 3  # in a row; then FAILED
MAX_BACKOFF_S = 60.0
GOOD_AFTER_S = 1.0  # a stage that ended well this long before a failure breaks the row
S = EngineStatus

# --- finish -------------------------------------------------------------------------------------


def finish_transition(state: NodeState, event: TransitionFinished) -> None:
    """An effect was carried out and verified."""
    engine = find_engine(state, event.engine_id)
    readings = event.readings
    if min(readings.device_bytes, readings.host_bytes, readings.kv_pool_bytes) < 0:
        raise state.violation(f"{event.engine_id}: negative readings {readings}", engine)
    pending = _current_effect(state, engine, event.generation, event.effect_id)
    if pending is None:
        state.stale()
        return
    state.unlock(engine)
    state.dirty = True
    engine.makes_room_for = None
    if pending.kind in (EffectKind.START, EffectKind.WAKE):
        _come_awake(state, engine, readings, pending.kind)
    elif pending.kind is EffectKind.RESUME:
        _go_on(state, engine, readings)
    elif pending.kind is EffectKind.SLEEP:
        rest(state, engine, S.SLEEPING, pending.tier, readings)
    elif pending.kind is EffectKind.SUSPEND:
        rest(state, engine, S.SUSPENDED, pending.tier, readings)
    else:
        _be_gone(state, engine)
    settle_requests(state, engine)


def _come_awake(
    state: NodeState, engine: EngineState, readings: EngineReadings, kind: EffectKind
) -> None:
    """Started or woken: serve those it was woken for, before anything else is asked of it."""
    order, engine.give_way = engine.give_way, None
    set_awake(state, engine, S.IDLE, readings)
    engine.failure = None
    engine.failed_steps = 0
    protect_waiters(engine)
    forward_waiters(state, engine)
    if engine.prewarm_expected_s is not None:
        profile = engine.need_profile()
        unused_s = 2 * (profile.wake_s if kind is EffectKind.WAKE else profile.cold_start_s)
        engine.prewarm_until_s = max(state.now_s, engine.prewarm_expected_s) + unused_s
    if order is not None:
        settle_requests(state, engine)
        drain(state, engine, order)


def _go_on(state: NodeState, engine: EngineState, readings: EngineReadings) -> None:
    """Resumed: its frozen requests go on."""
    order, engine.give_way = engine.give_way, None
    set_awake(state, engine, S.ACTIVE if engine.running else S.IDLE, readings)
    protect_waiters(engine)
    forward_waiters(state, engine)
    if order is not None:
        drain(state, engine, order)


def set_awake(
    state: NodeState, engine: EngineState, status: EngineStatus, readings: EngineReadings
) -> None:
    """The engine holds weights and KV; its booking follows the readings."""
    engine.tier = ResidencyTier.DEVICE
    engine.reading_bytes = reading_per_device(engine, readings.device_bytes)
    engine.host_reading_bytes = 0
    engine.last_used_s = state.now_s
    engine.idle_since_s = state.now_s if status is S.IDLE else None
    state.move(engine, status, "verified")
    state.follow(engine, state.footprint(engine))


def rest(
    state: NodeState,
    engine: EngineState,
    status: EngineStatus,
    tier: ResidencyTier,
    readings: EngineReadings,
) -> None:
    """The engine sleeps or is suspended; only now does the memory count as free."""
    engine.tier = tier
    engine.reading_bytes = reading_per_device(engine, readings.device_bytes)
    engine.host_reading_bytes = readings.host_bytes if HOST_DEVICE not in engine.devices else 0
    state.move(engine, status, "verified")
    state.follow(engine, state.footprint(engine))


def reading_per_device(engine: EngineState, device_bytes: int) -> int:
    """An even share of a reading that is summed over the engine's devices."""
    return -(-device_bytes // max(1, len(engine.devices)))


def _be_gone(state: NodeState, engine: EngineState) -> None:
    """The process is gone, verified: what it held is free."""
    for stage in list(engine.running.values()):
        reason = engine.failure or "its engine was stopped"
        abort_and_forget(state, engine, stage, Outcome.FAILED, reason)
    state.books.release(engine.engine_id)
    status = S.FAILED if engine.doomed else S.STOPPED
    state.move(engine, status, engine.failure or "process gone")
    engine.doomed = False
    engine.give_way = None
    engine.tier = ResidencyTier.DISK
    engine.devices = ()
    engine.kv_limit_bytes = engine.kv_base_bytes = 0
    engine.reading_bytes = engine.host_reading_bytes = 0
    engine.stop_failures = 0
    engine.idle_since_s = None
    engine.prewarm_expected_s = engine.prewarm_until_s = None
    state.dirty = True
    if status is S.FAILED:
        reason = f"engine of {engine.model!r} failed: {engine.failure}"
        refuse_waiters(state, engine, reason, retry_in_s=COOL_DOWN_S)
        fail_requests(state, engine, [ModelAction.WAKE], reason)


# --- fail ---------------------------------------------------------------------------------------


def fail_transition(state: NodeState, event: TransitionFailed) -> None:
    """An effect did not do what it should."""
    engine = find_engine(state, event.engine_id)
    pending = _current_effect(state, engine, event.generation, event.effect_id)
    if pending is None:
        state.stale()
        return
    state.unlock(engine)
    state.dirty = True
    _tell_beneficiary(state, engine)
    if pending.kind is EffectKind.STOP:
        _fail_stop(state, engine, event)
        return
    _note_failure(state, engine, f"{pending.kind} failed: {event.reason}", event.permanent)
    _give_up_work(state, engine)
    if event.alive:
        begin_stop(state, engine, "its state is not trusted")
    else:
        _be_gone(state, engine)
        settle_requests(state, engine)


def _tell_beneficiary(state: NodeState, engine: EngineState) -> None:
    """A step of a plan failed: whoever it was for is planned for again, but not for ever."""
    if engine.makes_room_for is not None:
        state.engines[engine.makes_room_for].failed_steps += 1
        engine.makes_room_for = None


def _fail_stop(state: NodeState, engine: EngineState, event: TransitionFailed) -> None:
    """It will not go: the booking stays, and it is told again later."""
    if not event.alive:
        _be_gone(state, engine)
        settle_requests(state, engine)
        return
    engine.stop_failures += 1
    engine.failure = f"could not be stopped: {event.reason}"
    engine.stop_retry_s = state.now_s + backoff_s(engine.stop_failures)
    state.changed = True
    state.stats.failures += 1
    state.record("lifecycle", engine.engine_id, S.STOPPING, engine.failure)
    fail_requests(state, engine, list(ModelAction), f"{engine.model!r} {engine.failure}")


def exit_engine(state: NodeState, event: EngineExited) -> None:
    """The process went without having been asked to.

    Its group may have left something behind and memory comes back late, so the books are kept
    until a `StopEngine` has verified that all of it is gone.
    """
    engine = find_engine(state, event.engine_id)
    if event.generation > engine.generation:
        raise state.violation(
            f"{event.engine_id}: generation {event.generation} exited, current is"
            f" {engine.generation}",
            engine,
        )
    expected = engine.status is S.STOPPING and engine.pending is not None
    if (
        event.generation < engine.generation
        or not engine.status.has_process
        or not engine.abilities.managed
        or expected
    ):
        state.stale()
        return
    state.dirty = True
    if engine.status is S.STOPPING:
        engine.stop_retry_s = state.now_s
        issue_stop(state, engine)
        return
    _note_failure(state, engine, f"engine exited: {event.reason}", permanent=False)
    _give_up_work(state, engine)
    begin_stop(state, engine, "process exited")


def _note_failure(state: NodeState, engine: EngineState, reason: str, permanent: bool) -> None:
    """Count a failure: back off, or give up after the third in a row."""
    good_s = engine.last_good_s
    if good_s is not None and state.now_s - good_s >= GOOD_AFTER_S:
        engine.failures = 0
    engine.last_good_s = None
    engine.failures += 1
    engine.failure = reason
    engine.doomed = permanent or engine.failures >= MAX_FAILURES
    engine.not_before_s = state.now_s + backoff_s(engine.failures)
    state.stats.failures += 1
    choice = S.FAILED if engine.doomed else "back-off"
    state.record("lifecycle", engine.engine_id, choice, reason)


def _give_up_work(state: NodeState, engine: EngineState) -> None:
    """Whatever the engine was to serve goes elsewhere, with the reason."""
    reason = f"engine of {engine.model!r}: {engine.failure}"
    for stage in list(engine.running.values()):
        abort_and_forget(state, engine, stage, Outcome.FAILED, reason)
    retry_in_s = COOL_DOWN_S if engine.doomed else engine.not_before_s - state.now_s
    refuse_waiters(state, engine, reason, retry_in_s=retry_in_s)
    fail_requests(state, engine, [ModelAction.WAKE, ModelAction.SLEEP], reason)


def backoff_s(num_failures: int) -> float:
    """1, 2, 4, ... seconds after the first, second, third failure in a row."""
    return min(MAX_BACKOFF_S, float(2 ** (num_failures - 1)))


# --- which effect is meant ----------------------------------------------------------------------


def find_engine(state: NodeState, engine_id: EngineId) -> EngineState:
    """The engine an event is about.

    Raises:
        InvariantViolation: the node has no such engine.
    """
    engine = state.engines.get(engine_id)
    if engine is None:
        raise state.violation(f"no engine {engine_id!r} on {state.node.name}")
    return engine


def _current_effect(
    state: NodeState, engine: EngineState, generation: int, effect_id: int
) -> PendingEffect | None:
    """The effect in flight when it is the one meant, None when that one is history.

    Raises:
        InvariantViolation: it was never issued.
    """
    if generation > engine.generation or effect_id > engine.last_effect_id:
        raise state.violation(
            f"{engine.engine_id}: result of effect {effect_id}, generation {generation}, but the"
            f" newest is {engine.last_effect_id}, {engine.generation}",
            engine,
        )
    pending = engine.pending
    if pending is None or pending.effect_id != effect_id or generation != engine.generation:
        return None
    return pending
