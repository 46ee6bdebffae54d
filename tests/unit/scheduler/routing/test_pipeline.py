"""Filter, score, pick; and what a decision says of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.effects import DispatchStage, SetTimer
from maestroctl.scheduler.events import TimerFired
from maestroctl.scheduler.routing.filters import InteractiveReserve, NotExcluded, NotWhereItFailed
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.pipeline import (
    MAX_CANDIDATES,
    MaxScorePicker,
    Pipeline,
    RouteDecision,
    RoutingPolicy,
)
from maestroctl.scheduler.routing.scorers import LoadScorer, ReadinessScorer
from maestroctl.testing.coordinator_builders import (
    PREDICTION,
    arrival,
    make_engine,
    make_snapshot,
    make_stage,
)
from tests.unit.scheduler.conftest import Coordinator

M = ModelName("m")


def fleet_of(*nodes: str, slots: int = 2) -> FleetState:
    fleet = FleetState(1)
    for node in nodes:
        fleet.apply(make_snapshot(node, [make_engine(slots=slots, node=node)]), 0.0, 0.0)
    return fleet


def a_stage(
    models: Sequence[str] = ("m",), service_class: ServiceClass = ServiceClass.INTERACTIVE
) -> StageState:
    stage = make_stage(models=models, service_class=service_class)
    return StageState(stage, PREDICTION, JobState(stage.job_id, "", service_class, 0.0, None), 0.0)


def pipeline() -> Pipeline:
    return Pipeline(
        (NotExcluded(), NotWhereItFailed(), InteractiveReserve()),
        ((2.0, ReadinessScorer()), (1.0, LoadScorer())),
        MaxScorePicker(),
    )


def test_rejections_are_counted_by_reason() -> None:
    fleet = fleet_of("n1", "n2", "n3")
    stage = a_stage()
    stage.excluded = ((NodeName("n1"), M),)
    stage.avoid = NodeName("n2")
    decision = pipeline().route(stage, fleet, 0.0)
    assert decision.place is not None
    assert decision.place.name == "m@n3"
    assert decision.rejected_counts == {
        "the node can never take it": 1,
        "its last attempt failed there": 1,
    }


def test_candidates_are_kept_best_first_with_their_weighted_terms() -> None:
    fleet = fleet_of("n1", "n2")
    fleet.reserve(fleet.open_places(M)[NodeName("n1")], 1, 10)
    decision = pipeline().route(a_stage(), fleet, 0.0)
    shown = [(c.name, c.score, dict(c.terms)) for c in decision.candidates]
    assert shown == [
        ("m@n2", 3.0, {"readiness": 2.0, "load": 1.0}),
        ("m@n1", 2.5, {"readiness": 2.0, "load": 0.5}),
    ]


def test_a_record_keeps_sixteen_candidates() -> None:
    fleet = fleet_of(*(f"n{number:02}" for number in range(40)))
    decision = pipeline().route(a_stage(), fleet, 0.0)
    assert len(decision.candidates) == MAX_CANDIDATES
    assert decision.reason == "best of 40 places with a free slot"


def test_the_first_model_with_a_place_serves() -> None:
    fleet = fleet_of("n1")
    decision = pipeline().route(a_stage(["k", "m"]), fleet, 0.0)
    assert decision.place is not None
    assert decision.place.model == "m"


def test_reserved_slots_are_closed_to_batch_alone() -> None:
    fleet = fleet_of("n1", slots=3)
    place = fleet.open_places(M)[NodeName("n1")]
    fleet.keep_slots(place, 2)
    fleet.reserve(place, 1, 10)
    place.num_batch = 1
    assert pipeline().route(a_stage(), fleet, 0.0).place is place
    batch = pipeline().route(a_stage(service_class=ServiceClass.BATCH), fleet, 0.0)
    assert batch.place is None
    assert batch.rejected_counts == {"its free slots are kept for interactive stages": 1}


@pytest.mark.parametrize("other_node", ["n2", None])
def test_a_failed_node_is_avoided_unless_it_is_the_only_one(other_node: str | None) -> None:
    fleet = fleet_of("n1", *([other_node] if other_node else []), slots=1)
    stage = a_stage()
    stage.avoid = NodeName("n1")
    place = pipeline().route(stage, fleet, 0.0).place
    assert place is not None
    assert place.node.name == (other_node or "n1")


def test_a_policy_that_prefers_to_wait_is_asked_again(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Patient(RoutingPolicy):
        def route(self, stage: StageState, fleet: FleetState, now_s: float) -> RouteDecision:
            if now_s < 5.0:
                return RouteDecision(None, "a warm slot frees soon", wait_s=5.0 - now_s)
            return pipeline().route(stage, fleet, now_s)

    monkeypatch.setattr(coordinator.core._dispatcher, "_routing", Patient())
    coordinator.connect()
    effects = coordinator.tell(arrival(make_stage()), 1.0)
    assert SetTimer("route/m", 5.0) in effects  # type: ignore[arg-type]
    effects = coordinator.tell(TimerFired("route/m"), 5.0)  # type: ignore[arg-type]
    assert isinstance(effects[0], DispatchStage)
