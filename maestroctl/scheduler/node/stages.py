"""What happens to stages: offered, forwarded, held, refused, aborted, left.

A stage is in exactly one place (`StagePlace`) from the event that takes it to the one effect or
event that ends it: `RefuseStage`, `AbortStage`, or `StageLeft` / `StageWithdrawn` after
`ForwardStage`. An aborted stage that was forwarded keeps its place on the engine (LEAVING) until
the host says that the relay is over.

The hot path is an offer to an awake engine with a free slot, and the stage leaving again: no
record, no reconciliation, no snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import DeviceName
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import AbortStage, ForwardStage, RefuseStage, SetKvLimit
from maestroctl.scheduler.events import (
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageSentFirstByte,
    StageWithdrawn,
)
from maestroctl.scheduler.node.admission import can_forward, can_hold, explain_full
from maestroctl.scheduler.node.engine_state import EngineState, StagePlace, StageState
from maestroctl.scheduler.node.state import NodeState

COOL_DOWN_S = 60.0  # a FAILED engine may be tried again after this
RETRY_DUPLICATE_S = 0.5  # the aborted attempt needs about this to leave

# --- events -------------------------------------------------------------------------------------


def offer_stage(state: NodeState, event: StageOffered) -> None:
    """Forward the stage, hold it, or refuse it. The epoch was checked by the caller."""
    state.stats.offered += 1
    if event.seq > state.applied_seq:
        state.applied_seq = event.seq
    engine = state.by_model.get(event.model)
    if engine is None:
        _refuse_offer(state, event, f"this node does not run {event.model!r}", permanent=True)
        return
    if state.shutdown is not None:
        _refuse_offer(state, event, "the node is shutting down")
        return
    state.arrivals += 1
    stage = StageState(
        event.stage_id,
        event.attempt,
        engine.engine_id,
        event.epoch,
        event.service_class,
        event.key,
        engine.kv_bytes(max(event.booked_tokens, event.prompt_tokens)),
        state.now_s,
        state.arrivals,
    )
    if state.is_open(engine) and not engine.waiting and _make_fit(state, engine, stage.kv_bytes):
        state.stages[stage.stage_id] = stage
        forward(state, engine, stage)
    else:
        _hold_or_refuse(state, engine, stage)


def leave_stage(state: NodeState, event: StageLeft) -> None:
    """The relay is over: its slot and KV booking are free."""
    stage = state.stages.get(event.stage_id)
    if stage is None:
        state.stale()
        return
    if stage.place is StagePlace.WAITING:
        raise state.violation(
            f"stage {event.stage_id} left although it was never forwarded", stage_id=stage.stage_id
        )
    state.stats.left += 1
    engine = state.engines[stage.engine_id]
    if stage.first_byte and stage.place is StagePlace.RUNNING:
        engine.last_good_s = state.now_s
    _depart(state, engine, stage, "left")


def withdraw_stage(state: NodeState, event: StageWithdrawn) -> None:
    """The coordinator took the stage back: held or running, it is over here."""
    stage = state.stages.get(event.stage_id)
    if stage is None:
        state.stale()
        return
    state.stats.withdrawn += 1
    _depart(state, state.engines[stage.engine_id], stage, "withdrawn")


def note_first_byte(state: NodeState, event: StageSentFirstByte) -> None:
    """From now on only a last resort touches the stage."""
    stage = state.stages.get(event.stage_id)
    if stage is None:
        state.stale()
        return
    if stage.place is StagePlace.WAITING:
        raise state.violation(
            f"stage {event.stage_id} sent a byte before it was forwarded", stage_id=stage.stage_id
        )
    stage.first_byte = True


def rebook_outgrown(state: NodeState, event: StageOutgrew) -> None:
    """The booking follows the stage; the KV limit too, where it is elastic and memory is free.

    Nobody is aborted: an engine whose limit cannot follow preempts inside it by recomputation.
    """
    if event.num_tokens < 0:
        raise state.violation(
            f"stage {event.stage_id} holds {event.num_tokens} tokens", stage_id=event.stage_id
        )
    stage = state.stages.get(event.stage_id)
    if stage is None:
        state.stale()
        return
    if stage.place is StagePlace.WAITING:
        raise state.violation(
            f"stage {event.stage_id} grew before it was forwarded", stage_id=stage.stage_id
        )
    engine = state.engines[stage.engine_id]
    more = engine.kv_bytes(event.num_tokens) - stage.kv_bytes
    if more <= 0:
        return
    state.stats.outgrown += 1
    stage.kv_bytes += more
    engine.kv_booked_bytes += more
    raise_kv_limit(state, engine, engine.kv_booked_bytes)


# --- primitives ---------------------------------------------------------------------------------


def forward(state: NodeState, engine: EngineState, stage: StageState) -> None:
    """Give the stage, which is in the table and in no place yet, to its awake engine."""
    stage.place = StagePlace.RUNNING
    engine.running[stage.stage_id] = stage
    engine.kv_booked_bytes += stage.kv_bytes
    engine.last_used_s = state.now_s
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
    for stage in engine.waiters_in_order():
        if not _make_fit(state, engine, stage.kv_bytes):
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
    for stage in engine.waiters_in_order():
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
        _depart(state, engine, stage, "aborted")
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
    before = engine.kv_limit_bytes
    engine.kv_limit_bytes = wanted_bytes
    wanted = state.footprint(engine)
    if not state.books.fits(engine.engine_id, wanted):
        engine.kv_limit_bytes = before
        return False
    state.books.book(engine.engine_id, wanted)
    state.effects.append(SetKvLimit(engine.engine_id, engine.generation, wanted_bytes))
    state.changed = True
    return True


# --- inside -------------------------------------------------------------------------------------


def _make_fit(state: NodeState, engine: EngineState, kv_bytes: int) -> bool:
    """Does the stage fit, if need be with a higher KV limit out of free memory?"""
    if can_forward(engine, kv_bytes):
        return True
    return (
        engine.abilities.elastic_kv
        and len(engine.running) <= engine.max_batch
        and not state.contended
        and raise_kv_limit(state, engine, engine.kv_booked_bytes + kv_bytes)
    )


def _hold_or_refuse(state: NodeState, engine: EngineState, stage: StageState) -> None:
    """The engine cannot take the stage at once."""
    if engine.status is EngineStatus.FAILED:
        retry_in_s = max(0.0, engine.since_s + COOL_DOWN_S - state.now_s)
        reason = f"engine of {engine.model!r} failed: {engine.failure}"
        _refuse_new(state, stage, reason, retry_in_s=retry_in_s)
    elif not engine.status.has_process and engine.model in state.never_fits:
        _refuse_new(state, stage, state.never_fits[engine.model], permanent=True)
    elif not can_hold(engine):
        reason, retry_in_s = explain_full(engine)
        _refuse_new(state, stage, reason, retry_in_s=retry_in_s)
    else:
        _hold(state, engine, stage)


def _hold(state: NodeState, engine: EngineState, stage: StageState) -> None:
    state.stages[stage.stage_id] = stage
    first = not engine.waiting
    engine.waiting[stage.stage_id] = stage
    engine.kv_waiting_bytes += stage.kv_bytes
    state.stats.held += 1
    state.journal.note(state.now_s, engine.engine_id, stage.stage_id, "held")
    if state.is_open(engine):
        return  # waits for a slot: whoever leaves forwards it
    state.dirty = True
    state.changed = state.changed or first
    state.record("admit", stage.stage_id, engine.engine_id, f"held: engine is {engine.status}")


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


def _depart(state: NodeState, engine: EngineState, stage: StageState, how: str) -> None:
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


def _refuse_offer(
    state: NodeState, event: StageOffered, reason: str, *, permanent: bool = False
) -> None:
    state.stats.refused += 1
    state.journal.note(state.now_s, None, event.stage_id, f"refused: {reason}")
    state.record("refuse", event.stage_id, "", reason)
    state.effects.append(RefuseStage(event.stage_id, reason, permanent=permanent))


def _refuse_new(
    state: NodeState,
    stage: StageState,
    reason: str,
    *,
    permanent: bool = False,
    retry_in_s: float | None = None,
) -> None:
    """Refuse an offer that was never put into a table."""
    state.stats.refused += 1
    state.journal.note(state.now_s, stage.engine_id, stage.stage_id, f"refused: {reason}")
    state.record("refuse", stage.stage_id, "", reason)
    state.effects.append(
        RefuseStage(stage.stage_id, reason, permanent=permanent, retry_in_s=retry_in_s)
    )
