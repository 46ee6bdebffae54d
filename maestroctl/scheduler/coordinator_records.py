"""Decision records of `CoordinatorCore`: one per real decision, cheap where nothing was weighed."""

from __future__ import annotations

from maestroctl.domain.records import DecisionRecord
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import RecordDecision
from maestroctl.scheduler.routing.fleet_state import Place
from maestroctl.scheduler.routing.model_choice import ModelDecision
from maestroctl.scheduler.routing.pipeline import RouteDecision


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


def record_order(stage: StageState, num_ahead: int, why: str, now_s: float) -> RecordDecision:
    """The stage waits; `num_ahead` others wait as well."""
    models = " or ".join(stage.models)
    return RecordDecision(
        DecisionRecord(
            now_s,
            "order",
            stage.stage_id,
            "queue",
            f"{why} for {models}; {num_ahead} other stages wait; key {stage.key:.6g}",
        )
    )


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
