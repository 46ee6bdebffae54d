"""A node does not take a stage: where it goes, and how long its place is left alone."""

from __future__ import annotations

import pytest

from maestroctl.domain.ids import TimerId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.records import DecisionRecord
from maestroctl.scheduler.effects import (
    CancelTimer,
    DispatchStage,
    RecordDecision,
    ResolveStage,
    SetTimer,
)
from maestroctl.scheduler.events import (
    StageEnded,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator, dispatch, fill, sid


def test_a_refused_stage_is_rerouted_once_to_the_other_node(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    coordinator.tell(node_says(make_snapshot("n2")))
    coordinator.tell(arrival(make_stage()))
    effects = coordinator.core.handle(StageRefused(sid("s1"), 1, "no room"), 1.0)
    assert effects == [
        RecordDecision(DecisionRecord(1.0, "refuse", "s1", "m@n1", "no room")),
        SetTimer(TimerId("queue-timeout"), 601.0),
        dispatch(seq=2, attempt=2, node="n2"),
        RecordDecision(
            DecisionRecord(
                1.0,
                "route",
                "s1",
                "m@n2",
                "the only place with a free slot, after 0.000 s in the queue, attempt 2",
                (),
                {},
                1.0,
            )
        ),
    ]


def test_a_refused_stage_waits_at_the_head_until_the_node_speaks(coordinator: Coordinator) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c", arrival_s=-5.0)))
    coordinator.tell(StageRefused(sid("b"), 1, "no room"), 1.0)
    assert [view.stage_id for view in coordinator.core.queued()] == ["b", "c"]
    assert coordinator.core.queued()[0].last_reason == "no room"
    assert coordinator.tell(node_says(), 2.0) == [dispatch("b", seq=3, attempt=2)]


def test_a_refusal_blocks_the_place_for_all_and_not_other_models(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine("m"), make_engine("other")])))
    coordinator.tell(arrival(make_stage("a")))
    coordinator.tell(StageRefused(sid("a"), 1, "no room", {}, False, 3.0))
    queued = coordinator.tell(arrival(make_stage("b")))
    assert not any(isinstance(effect, DispatchStage) for effect in queued)
    assert coordinator.tell(arrival(make_stage("c", models=["other"]))) == [
        dispatch("c", seq=2, model="other")
    ]


def test_the_nodes_hint_ends_the_block(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    effects = coordinator.tell(StageRefused(sid("s1"), 1, "busy", {}, False, 3.0), 1.0)
    assert SetTimer(TimerId("unblock/m@n1"), 4.0) in effects
    assert coordinator.tell(TimerFired(TimerId("unblock/m@n1")), 4.0) == [
        dispatch(seq=2, attempt=2)
    ]


def test_a_snapshot_before_the_hint_ends_the_block_and_its_timer(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageRefused(sid("s1"), 1, "busy", {}, False, 3.0), 1.0)
    assert coordinator.tell(node_says(), 2.0) == [
        CancelTimer(TimerId("unblock/m@n1")),
        dispatch(seq=2, attempt=2),
    ]


def test_refusals_in_a_row_wait_longer_than_the_next_snapshot(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageRefused(sid("s1"), 1, "no room"), 1.0)
    coordinator.tell(node_says(), 1.0)
    coordinator.tell(StageRefused(sid("s1"), 2, "no room"), 1.0)
    assert coordinator.tell(node_says(), 1.0) == [SetTimer(TimerId("unblock/m@n1"), 1.1)]
    assert coordinator.tell(TimerFired(TimerId("unblock/m@n1")), 1.1) == [
        dispatch(seq=3, attempt=3)
    ]
    coordinator.tell(StageRefused(sid("s1"), 3, "no room"), 1.1)
    assert coordinator.tell(node_says(), 1.1) == [
        SetTimer(TimerId("unblock/m@n1"), pytest.approx(1.3))  # type: ignore[arg-type]
    ]


def test_a_snapshot_moves_the_end_of_a_block_forward_and_never_back(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageRefused(sid("s1"), 1, "no room"), 1.0)
    coordinator.tell(node_says(), 1.0)
    effects = coordinator.tell(StageRefused(sid("s1"), 2, "no room", {}, False, 20.0), 1.0)
    assert SetTimer(TimerId("unblock/m@n1"), 21.0) in effects
    assert coordinator.tell(node_says(), 1.05) == [SetTimer(TimerId("unblock/m@n1"), 1.1)]
    assert coordinator.tell(node_says(), 1.06) == []


def test_a_stage_that_is_given_back_may_go_to_another_model_at_once(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(("m", "other"), ("n1", "n2")))
    coordinator.tell(arrival(make_stage(models=["other", "m"])))
    coordinator.tell(node_says(make_snapshot("n2", [make_engine("m", node="n2")])))
    engines = [make_engine("m"), make_engine("other")]
    coordinator.tell(node_says(make_snapshot("n1", engines)))
    effects = coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, False))
    assert effects[-1] == dispatch(seq=2, attempt=2, model="other")


def test_an_answer_ends_a_row_of_refusals(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageRefused(sid("s1"), 1, "no room"))
    coordinator.tell(node_says())
    coordinator.tell(StageStarted(sid("s1"), 2))
    coordinator.tell(arrival(make_stage("s2")))
    coordinator.tell(StageRefused(sid("s2"), 1, "no room"))
    assert coordinator.tell(node_says()) == [dispatch("s2", seq=4, attempt=2)]


def test_a_stage_that_no_node_can_ever_take_is_unavailable_with_the_nodes_reason(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    coordinator.tell(node_says(make_snapshot("n2")))
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageRefused(sid("s1"), 1, "too long for n1", {}, True))
    effects = coordinator.tell(StageRefused(sid("s1"), 2, "too long for n2", {}, True), 1.0)
    assert effects[-1] == ResolveStage(sid("s1"), Outcome.UNAVAILABLE, "too long for n2")
    assert coordinator.core.counters.refused == 2


def test_a_permanent_refusal_hands_the_slot_to_the_next_stage(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    effects = coordinator.tell(StageRefused(sid("a"), 1, "too long", {}, True), 1.0)
    assert effects[-1] == dispatch("c", seq=3)
    assert [view.stage_id for view in coordinator.core.queued()] == ["a"]


def test_a_permanent_refusal_moves_on_to_the_next_candidate_model(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine("m"), make_engine("other")])))
    coordinator.tell(arrival(make_stage(models=["m", "other"])))
    effects = coordinator.tell(StageRefused(sid("s1"), 1, "never", {}, True))
    assert effects[-1] == dispatch(seq=2, attempt=2, model="other")
