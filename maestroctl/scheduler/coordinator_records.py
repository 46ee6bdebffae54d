"""Decision records of `CoordinatorCore`: one per real decision, cheap where nothing was weighed."""

from __future__ import annotations

from collections.abc import Sequence

from maestroctl.domain.records import Candidate, DecisionRecord
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import RecordDecision
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.routing.model_choice import ModelDecision
from maestroctl.scheduler.routing.pipeline import NO_FREE_SLOT, RouteDecision


def record_route(
    stage: StageState, place: Place, decision: RouteDecision, now_s: float
) -> RecordDecision:
    """The stage goes to `place`."""
    reason = decision.reason
    if stage.queued_s is not None:
        reason = f"{reason}, after {now_s - stage.queued_s:.3f} s in the queue"
    if stage.attempt > 1:
        reason = f"{reason}, attempt {stage.attempt}"
    return RecordDecision(
        DecisionRecord(
            now_s,
            "route",
            stage.stage_id,
            place.name,
            reason,
            decision.candidates,
            decision.rejected_counts,
            now_s - place.node.received_s,
        )
    )


def record_prediction(stage: StageState, before: float, now_s: float) -> RecordDecision:
    """A better prediction came after the stage was sent or queued.

    Args:
        before: tokens booked at its place, or its key in the queue, on the earlier prediction.
    """
    said = stage.prediction
    if stage.place is not None:
        choice, booked = stage.place.name, stage.booked_tokens
        instead = f"books {booked} tokens, not {before:.0f}"
        change = f"still books {booked} tokens" if booked == before else instead
    else:
        choice, change = "queue", f"key {stage.key:.6g}, not {before:.6g}"
    reason = (
        f"{change}: q50 {said.output_q50:.0f}, q90 {said.output_q90:.0f} tokens,"
        f" tool {said.p_tool:.2f}, by the {said.source}"
    )
    return RecordDecision(DecisionRecord(now_s, "predict", stage.stage_id, choice, reason))


def record_order(
    stage: StageState, num_others: int, why: str, kept: Sequence[Place], now_s: float
) -> RecordDecision:
    """The stage waits.

    Args:
        num_others: stages that wait as well.
        kept: places that have free slots for interactive stages alone.
    """
    models = " or ".join(stage.models)
    if kept and why == NO_FREE_SLOT:
        why = "no free slot outside the interactive reserve"
    return RecordDecision(
        DecisionRecord(
            now_s,
            "order",
            stage.stage_id,
            "queue",
            f"{why} for {models}; {num_others} other stages wait; key {stage.key:.6g}",
            tuple(Candidate(place.name, None, _slots(place)) for place in kept),
        )
    )


def _slots(place: Place) -> dict[str, float]:
    """Free ones count those that are kept."""
    free = place.slots - place.in_flight
    return {"slots": place.slots, "free": free, "kept": place.reserved}


def record_model(stage: StageState, decision: ModelDecision, now_s: float) -> RecordDecision:
    """The stage may be served by these of its candidates."""
    return RecordDecision(
        DecisionRecord(
            now_s,
            "choose_model",
            stage.stage_id,
            " or ".join(decision.models),
            decision.reason,
            decision.candidates,
        )
    )


def record_refusal(stage: StageState, where: str, reason: str, now_s: float) -> RecordDecision:
    """`where` (a place, or the coordinator) does not take the stage."""
    return RecordDecision(DecisionRecord(now_s, "refuse", stage.stage_id, where, reason))
