"""What may be done with a stage: forward, refuse, abort, take out; and its KV on the engine.

A stage is in exactly one place (`StagePlace`) from the event that takes it to the one effect or
event that ends it: `RefuseStage`, `AbortStage`, or `StageLeft` / `StageWithdrawn` after
`ForwardStage`. An aborted stage that was forwarded keeps its place on the engine (LEAVING) until
the host says that the relay is over. The events themselves are in `stage_events`.
"""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import AbortStage, ForwardStage, RefuseStage, SetKvLimit
from maestroctl.scheduler.node.admission import can_forward
from maestroctl.scheduler.node.engine_state import EngineState, StagePlace, StageState
from maestroctl.scheduler.node.state import NodeState

COOL_DOWN_S = 60.0  # a FAILED engine may be tried again after this


def forward(state: NodeState, engine: EngineState, stage: StageState) -> None:
    """Give the stage, which is in the table and in no place yet, to its awake engine."""
    stage.place = StagePlace.RUNNING
    engine.note_passed(stage, state.now_s)
    engine.running[stage.stage_id] = stage
    engine.kv_booked_bytes += stage.kv_bytes
    stage.started_s = engine.last_used_s = state.now_s
    engine.advice = None
    engine.prewarm_expected_s = None
    engine.prewarm_until_s = None
    if engine.status is EngineStatus.IDLE:
        state.flip(engine, EngineStatus.ACTIVE)
        engine.idle_since_s = None
    state.stats.forwarded += 1
    state.journal.note(state.now_s, engine.engine_id, stage.stage_id, "forwarded")
    state.effects.append(ForwardStage(stage.stage_id, engine.engine_id, engine.generation))


def forward_waiters(state: NodeState, engine: EngineState) -> None:
    """Forward held stages while the engine is open and the next in order fits."""
    if not engine.waiting or not state.is_open(engine):
        return
    for stage in engine.waiters_in_order(state.now_s):
        if not make_fit(state, engine, stage.kv_bytes):
            break
        _unhold(state, engine, stage)
        forward(state, engine, stage)


def protect_waiters(engine: EngineState) -> None:
    """The engine was activated for the stages held now: no victim before they have left."""
    for stage in engine.waiting.values():
        if not stage.protected:
            stage.protected = True
            engine.num_protected += 1


def refuse(
    state: NodeState,
    engine: EngineState,
    stage: StageState,
    reason: str,
    *,
    shortfall: Mapping[DeviceName, int] | None = None,
    retry_in_s: float | None = None,
) -> None:
    """Refuse a held stage."""
    _unhold(state, engine, stage)
    del state.stages[stage.stage_id]
    _unprotect(engine, stage)
    state.stats.refused += 1
    state.dirty = True
    state.journal.note(state.now_s, engine.engine_id, stage.stage_id, f"refused: {reason}")
    state.record("refuse", stage.stage_id, "", reason)
    state.effects.append(
        RefuseStage(stage.stage_id, reason, dict(shortfall or {}), False, retry_in_s)
    )


def refuse_waiters(
    state: NodeState,
    engine: EngineState,
    reason: str,
    *,
    shortfall: Mapping[DeviceName, int] | None = None,
    retry_in_s: float | None = None,
) -> None:
    """Refuse every stage held for the engine, in order."""
    for stage in engine.waiters_in_order(state.now_s):
        refuse(state, engine, stage, reason, shortfall=shortfall, retry_in_s=retry_in_s)


def abort(
    state: NodeState, engine: EngineState, stage: StageState, outcome: Outcome, reason: str
) -> None:
    """End a stage now. A forwarded one stays LEAVING until the host says that it has left."""
    if stage.place is StagePlace.LEAVING:
        return
    state.stats.aborted += 1
    state.journal.note(state.now_s, engine.engine_id, stage.stage_id, f"aborted: {reason}")
    state.effects.append(AbortStage(stage.stage_id, outcome, reason))
    if stage.place is StagePlace.WAITING:
        depart(state, engine, stage, "aborted")
    else:
        stage.place = StagePlace.LEAVING


def abort_and_forget(
    state: NodeState, engine: EngineState, stage: StageState, outcome: Outcome, reason: str
) -> None:
    """End a stage whose engine is gone or going: nobody will say that it has left."""
    abort(state, engine, stage, outcome, reason)
    if stage.place is StagePlace.LEAVING:
        _remove(state, engine, stage)


def raise_kv_limit(state: NodeState, engine: EngineState, wanted_bytes: int) -> bool:
    """Raise the KV limit of an awake, elastic engine to `wanted_bytes` if memory is free."""
    if wanted_bytes <= engine.kv_limit_bytes:
        return True
    if not engine.abilities.elastic_kv or not state.is_open(engine):
        return False
    wanted = grown_footprint(state, engine, wanted_bytes)
    if not state.books.fits(engine.engine_id, wanted):
        return False
    engine.kv_limit_bytes = wanted_bytes
    state.books.book(engine.engine_id, wanted)
    state.effects.append(SetKvLimit(engine.engine_id, engine.generation, wanted_bytes))
    state.changed = True
    return True


def grown_footprint(
    state: NodeState, engine: EngineState, kv_limit_bytes: int
) -> dict[DeviceName, int]:
    """What the awake engine would hold with this KV limit."""
    before, engine.kv_limit_bytes = engine.kv_limit_bytes, kv_limit_bytes
    wanted = state.footprint(engine)
    engine.kv_limit_bytes = before
    return wanted


def change_booking(
    state: NodeState, engine: EngineState, stage: StageState, more_bytes: int
) -> None:
    """The sequence booking of a stage follows what it holds, or what is predicted of it.

    So does the KV limit, where it is elastic; if memory is not free for it, idle engines may give
    way (`claims`). Nobody is aborted: an engine whose limit cannot follow preempts inside it by
    recomputation.
    """
    stage.kv_bytes += more_bytes
    if stage.place is StagePlace.WAITING:
        engine.kv_waiting_bytes += more_bytes
    else:
        engine.kv_booked_bytes += more_bytes
        raised = raise_kv_limit(state, engine, engine.kv_booked_bytes)
        if more_bytes > 0 and engine.abilities.elastic_kv and not raised:
            state.dirty = True
    if more_bytes < 0:
        forward_waiters(state, engine)


def make_fit(state: NodeState, engine: EngineState, kv_bytes: int) -> bool:
    """Does the stage fit, if need be with a higher KV limit out of free memory?"""
    if can_forward(engine, kv_bytes):
        return True
    return (
        engine.abilities.elastic_kv
        and len(engine.running) <= engine.max_batch
        and not state.contended
        and raise_kv_limit(state, engine, engine.kv_booked_bytes + kv_bytes)
    )


def _unhold(state: NodeState, engine: EngineState, stage: StageState) -> None:
    del engine.waiting[stage.stage_id]
    engine.kv_waiting_bytes -= stage.kv_bytes
    if not engine.waiting and not state.is_open(engine):
        state.changed = True


def _unprotect(engine: EngineState, stage: StageState) -> None:
    if stage.protected:
        stage.protected = False
        engine.num_protected -= 1


def _remove(state: NodeState, engine: EngineState, stage: StageState) -> None:
    """Take a stage out of every table."""
    del state.stages[stage.stage_id]
    _unprotect(engine, stage)
    if stage.place is StagePlace.WAITING:
        _unhold(state, engine, stage)
    else:
        del engine.running[stage.stage_id]
        engine.kv_booked_bytes -= stage.kv_bytes


def depart(state: NodeState, engine: EngineState, stage: StageState, how: str) -> None:
    """Take the stage out and let its engine go on: waiters, idleness, whoever wants its memory."""
    was_protected = stage.protected
    was_held = stage.place is StagePlace.WAITING
    _remove(state, engine, stage)
    state.journal.note(state.now_s, engine.engine_id, stage.stage_id, how)
    if engine.waiting:
        forward_waiters(state, engine)
    if not engine.running:
        _become_empty(state, engine)
    if was_held or (was_protected and engine.num_protected == 0):
        state.dirty = True


def _become_empty(state: NodeState, engine: EngineState) -> None:
    """The last forwarded stage has left."""
    if engine.status is EngineStatus.ACTIVE:
        state.flip(engine, EngineStatus.IDLE)
        engine.idle_since_s = state.now_s
        _lower_kv_limit(state, engine)
        if state.contended or state.shutdown is not None:
            state.dirty = True
        elif engine.spec.ttl_s is not None and not engine.pinned and engine.abilities.managed:
            watch_ttl(state, engine)
    else:
        state.dirty = True


def watch_ttl(state: NodeState, engine: EngineState) -> None:
    """Have a timer out for the idle time of the engine; an earlier one is left to re-arm itself."""
    if f"ttl:{engine.engine_id}" not in state.timers and engine.spec.ttl_s is not None:
        since_s = engine.idle_since_s if engine.idle_since_s is not None else state.now_s
        state.want_timer("ttl", engine, since_s + engine.spec.ttl_s)


def _lower_kv_limit(state: NodeState, engine: EngineState) -> None:
    """An elastic engine gives back what it took beyond the limit it was started with."""
    if engine.kv_limit_bytes <= engine.kv_base_bytes:
        return
    engine.kv_limit_bytes = engine.kv_base_bytes
    state.effects.append(SetKvLimit(engine.engine_id, engine.generation, engine.kv_limit_bytes))
    state.follow(engine, state.footprint(engine))
