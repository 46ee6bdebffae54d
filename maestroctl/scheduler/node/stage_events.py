"""What happens to stages: offered, withdrawn, left, grown.

The hot path is an offer to an awake engine with a free slot, and the stage leaving again: no
record, no reconciliation, no snapshot.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.scheduler.effects import RefuseStage
from maestroctl.scheduler.events import (
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageRebooked,
    StageSentFirstByte,
    StageWithdrawn,
)
from maestroctl.scheduler.node.admission import can_hold, explain_full
from maestroctl.scheduler.node.engine_state import EngineState, StagePlace, StageState
from maestroctl.scheduler.node.epochs import change_epoch
from maestroctl.scheduler.node.prewarm import consider_early_advice
from maestroctl.scheduler.node.stages import (
    COOL_DOWN_S,
    change_booking,
    depart,
    forward,
    forward_waiters,
    make_fit,
)
from maestroctl.scheduler.node.state import NodeState

RETRY_DUPLICATE_S = 0.5  # the former attempt needs about this to leave


def offer_stage(state: NodeState, event: StageOffered) -> None:
    """Forward the stage, hold it, or refuse it: epochs and duplicates first, then admission."""
    if event.prompt_tokens < 0 or event.booked_tokens < 0:
        raise state.violation(f"offer of negative tokens: {event}", stage_id=event.stage_id)
    present = state.stages.get(event.stage_id)
    if present is not None and not _is_on_its_way_out(state, present, event):
        raise state.violation(f"stage {event.stage_id} was offered twice", stage_id=event.stage_id)
    if event.epoch < state.epoch:
        state.stale()
        reason = f"epoch {event.epoch} is over, a newer coordinator took over"
        state.effects.append(RefuseStage(event.stage_id, reason))
        return
    if event.epoch > state.epoch:
        change_epoch(state, event.epoch)
    if event.stage_id in state.stages:
        reason = "its former attempt has not left yet"
        state.effects.append(RefuseStage(event.stage_id, reason, retry_in_s=RETRY_DUPLICATE_S))
        return
    state.stats.offered += 1
    state.applied_seq = max(state.applied_seq, event.seq)
    consider_early_advice(state)
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
        service_s=engine.service_s(event.prompt_tokens, event.booked_tokens),
    )
    engine.note_arrival(state.now_s)
    if state.is_open(engine) and not engine.waiting and make_fit(state, engine, stage.kv_bytes):
        state.stages[stage.stage_id] = stage
        forward(state, engine, stage)
    else:
        _hold_or_refuse(state, engine, stage)


def _is_on_its_way_out(state: NodeState, present: StageState, event: StageOffered) -> bool:
    """Is the stage of that id aborted, of an older epoch, or of another attempt?

    The host may still be closing the former attempt's request when the next one comes.
    """
    return (
        present.place is StagePlace.LEAVING
        or event.epoch != state.epoch
        or event.attempt != present.attempt
    )


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
    depart(state, engine, stage, "left")


def withdraw_stage(state: NodeState, event: StageWithdrawn) -> None:
    """The coordinator took the stage back: held or running, it is over here."""
    stage = state.stages.get(event.stage_id)
    if stage is None:
        state.stale()
        return
    state.stats.withdrawn += 1
    depart(state, state.engines[stage.engine_id], stage, "withdrawn")


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
    """The stage holds more than it booked: the booking follows it."""
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
    change_booking(state, engine, stage, more)


def rebook_predicted(state: NodeState, event: StageRebooked) -> None:
    """A better prediction: the booking follows it, up or down; what runs goes on running.

    A held stage that became smaller, or one that runs, may let others in.
    """
    if event.prompt_tokens < 0 or event.booked_tokens < 0:
        raise state.violation(f"negative tokens: {event}", stage_id=event.stage_id)
    if event.epoch != state.epoch:  # whoever comes after this one has no stage here yet
        state.stale()
        return
    state.applied_seq = max(state.applied_seq, event.seq)
    stage = state.stages.get(event.stage_id)
    if stage is None or stage.attempt != event.attempt or stage.place is StagePlace.LEAVING:
        state.stale()
        return
    engine = state.engines[stage.engine_id]
    state.stats.rebooked += 1
    stage.service_s = engine.service_s(event.prompt_tokens, event.booked_tokens)
    more = engine.kv_bytes(max(event.booked_tokens, event.prompt_tokens)) - stage.kv_bytes
    change_booking(state, engine, stage, more)


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
        if not first:  # it may go before those that wait, and fit where they do not
            forward_waiters(state, engine)
        if engine.waiting and engine.abilities.elastic_kv:
            state.dirty = True  # its limit may rise
        return  # waits for a slot: whoever leaves forwards it
    state.record("admit", stage.stage_id, engine.engine_id, f"held: engine is {engine.status}")
    if first:  # the others are part of the claim that the first one makes
        state.dirty = True
        state.changed = True


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
