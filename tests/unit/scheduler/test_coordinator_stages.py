"""The life of a stage: given these events, exactly these effects."""

from __future__ import annotations

import random

import pytest

from maestroctl.domain.ids import NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.records import DecisionRecord
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_state import StageStatus
from maestroctl.scheduler.effects import (
    CancelTimer,
    DispatchStage,
    RecordDecision,
    ResolveStage,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    NodeLost,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    fingerprint,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator, dispatch, fill, sid

# --- the plain path -------------------------------------------------------------------------------


def test_a_stage_with_a_free_slot_is_dispatched_at_once_with_one_small_record(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    effects = coordinator.core.handle(arrival(make_stage()), 3.0)
    record = DecisionRecord(
        3.0, "route", "s1", "m@n1", "the only place with a free slot", (), {}, 3.0
    )
    assert effects == [dispatch(), RecordDecision(record)]


def test_a_finished_stage_is_resolved_once_and_its_slot_goes_to_the_next(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c", arrival_s=1.0)), 1.0)
    assert coordinator.tell(StageStarted(sid("a"), 1), 2.0) == []
    assert coordinator.tell(
        StageEnded(sid("a"), 1, Outcome.FINISHED, True, Usage(50, 30)), 3.0
    ) == [ResolveStage(sid("a"), Outcome.FINISHED), dispatch("c", seq=3, key=1.0)]


def test_first_come_is_first_served_with_ties_by_stage_id(coordinator: Coordinator) -> None:
    coordinator.connect()
    fill(coordinator)
    for name, arrival_s in (("z", 1.0), ("y", 2.0), ("x", 1.0), ("w", 0.5)):
        coordinator.tell(arrival(make_stage(name, arrival_s=arrival_s)), 2.0)
    assert [view.stage_id for view in coordinator.core.queued()] == ["w", "x", "z", "y"]
    order = []
    for name in ("a", "b", "w", "x"):
        effects = coordinator.tell(StageEnded(sid(name), 1, Outcome.FINISHED, True), 3.0)
        order += [effect.stage_id for effect in effects if isinstance(effect, DispatchStage)]
    assert order == ["w", "x", "z", "y"]


def test_there_is_room_for_a_stage_that_would_be_sent_at_once(coordinator: Coordinator) -> None:
    has_room = coordinator.core.has_room
    assert not has_room(make_stage()), "no node is there"
    coordinator.connect()
    assert has_room(make_stage())
    assert not has_room(make_stage(models=("m", "other"))), "its model is still to be chosen"
    assert not has_room(make_stage(models=("other",))), "nobody serves it"
    coordinator.tell(arrival(make_stage("a")))
    assert has_room(make_stage()), "one slot of two is free"
    coordinator.tell(arrival(make_stage("b")))
    assert not has_room(make_stage()), "the model is full"
    coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 1.0)
    assert has_room(make_stage())
    coordinator.tell(StageRefused(sid("b"), 1, "full"), 2.0)
    assert not has_room(make_stage()), "the place is blocked, and one waits"


@pytest.mark.parametrize("seed", range(20))
def test_what_has_room_is_dispatched_by_its_own_arrival(
    coordinator: Coordinator, seed: int
) -> None:
    rng = random.Random(seed)
    coordinator.connect()
    for number in range(40):
        stage = make_stage(f"s{number}")
        had_room = coordinator.core.has_room(stage)
        effects = coordinator.tell(arrival(stage), float(number))
        assert had_room == any(isinstance(effect, DispatchStage) for effect in effects)
        if coordinator.core.num_in_flight and rng.random() < 0.6:
            view = rng.choice(coordinator.core.in_flight())
            ended = StageEnded(view.stage_id, view.attempt, Outcome.FINISHED, True)
            coordinator.tell(ended, float(number))


def test_progress_only_grows(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageProgressed(sid("s1"), 1, 10))
    coordinator.tell(StageProgressed(sid("s1"), 1, 5))
    assert coordinator.core.in_flight()[0].output_tokens == 10
    assert coordinator.core.counters.stale == 1


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.CANCELLED, Outcome.UNAVAILABLE])
def test_what_is_nobodys_accident_is_not_tried_again(
    coordinator: Coordinator, outcome: Outcome
) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    assert coordinator.tell(StageEnded(sid("s1"), 1, outcome, False, None, "why")) == [
        ResolveStage(sid("s1"), outcome, "why")
    ]


# --- cancelling -----------------------------------------------------------------------------------


def test_a_cancelled_stage_leaves_the_queue(coordinator: Coordinator) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    assert coordinator.tell(StageCancelled(sid("c"))) == [
        ResolveStage(sid("c"), Outcome.CANCELLED, "the caller went away")
    ]
    assert coordinator.core.num_queued == 0


def test_a_cancelled_stage_is_withdrawn_and_its_slot_goes_on_at_once(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    coordinator.tell(StageStarted(sid("a"), 1))
    assert coordinator.tell(StageCancelled(sid("a"))) == [
        WithdrawStage(sid("a"), 1, NodeName("n1")),
        ResolveStage(sid("a"), Outcome.CANCELLED, "the caller went away"),
        dispatch("c", seq=3),
    ]
    assert coordinator.tell(StageEnded(sid("a"), 1, Outcome.CANCELLED, True)) == []
    assert coordinator.core.counters.stale == 1


# --- failing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INTERRUPTED])
def test_before_its_first_byte_a_failed_stage_is_tried_once_more_elsewhere(
    coordinator: Coordinator, outcome: Outcome
) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(node_says(make_snapshot("n2")))
    effects = coordinator.tell(StageEnded(sid("s1"), 1, outcome, False, None, "crash"), 1.0)
    assert [e for e in effects if not isinstance(e, SetTimer)] == [
        dispatch(seq=2, attempt=2, node="n2")
    ]
    assert coordinator.core.counters.retried == 1
    assert coordinator.tell(StageEnded(sid("s1"), 2, outcome, False, None, "again"), 2.0) == [
        ResolveStage(sid("s1"), outcome, "again")
    ]


def test_the_failed_node_is_avoided_even_while_the_other_one_is_full(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.tell(node_says(make_snapshot("n2", [make_engine(node="n2", slots=1)])))
    coordinator.tell(arrival(make_stage("blocker")))
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, False), 1.0)
    assert [view.stage_id for view in coordinator.core.queued()] == ["s1"]
    assert coordinator.tell(StageEnded(sid("blocker"), 1, Outcome.FINISHED, True), 2.0) == [
        ResolveStage(sid("blocker"), Outcome.FINISHED),
        dispatch(seq=3, attempt=2, node="n2"),
    ]


def test_on_the_only_node_the_second_try_comes_after_a_pause(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    assert coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, False), 1.0) == [
        SetTimer(TimerId("pause/s1"), 1.25)
    ]
    assert coordinator.core.queued()[0].status is StageStatus.PARKED
    effects = coordinator.tell(TimerFired(TimerId("pause/s1")), 1.25)
    assert effects == [SetTimer(TimerId("queue-timeout"), 601.0), dispatch(seq=2, attempt=2)]


def test_a_parked_stage_can_be_cancelled(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, False), 1.0)
    assert coordinator.tell(StageCancelled(sid("s1")), 1.1) == [
        CancelTimer(TimerId("pause/s1")),
        ResolveStage(sid("s1"), Outcome.CANCELLED, "the caller went away"),
    ]


@pytest.mark.parametrize("told_by", ["StageStarted", "StageEnded"])
def test_after_its_first_byte_nothing_is_tried_again(
    coordinator: Coordinator, told_by: str
) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    if told_by == "StageStarted":
        coordinator.tell(StageStarted(sid("s1"), 1))
    started = told_by == "StageEnded"
    assert coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, started, None, "cut")) == [
        ResolveStage(sid("s1"), Outcome.FAILED, "cut")
    ]


def test_a_stage_taken_back_for_memory_goes_to_the_head_three_times_at_most(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    for attempt in (1, 2, 3):
        effects = coordinator.tell(StageEnded(sid("s1"), attempt, Outcome.PREEMPTED, False))
        assert dispatch(seq=attempt + 1, attempt=attempt + 1) in effects
    assert coordinator.tell(StageEnded(sid("s1"), 4, Outcome.PREEMPTED, False, None, "oom")) == [
        ResolveStage(sid("s1"), Outcome.PREEMPTED, "oom")
    ]
    assert coordinator.core.counters.preempted == 3


# --- stale and impossible -------------------------------------------------------------------------


def test_of_a_lost_node_and_its_ended_stages_the_first_counts(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(StageStarted(sid("s1"), 1))
    effects = coordinator.tell(NodeLost(NodeName("n1"), "gone"), 1.0)
    assert effects == [ResolveStage(sid("s1"), Outcome.FAILED, "node n1 was lost: gone")]
    assert coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, True), 1.0) == []
    assert coordinator.core.counters.stale == 1


def test_an_earlier_attempt_is_stale(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    coordinator.tell(node_says(make_snapshot("n2")))
    coordinator.tell(arrival(make_stage()))
    coordinator.tell(NodeLost(NodeName("n1"), "gone"))
    assert coordinator.core.in_flight()[0].attempt == 2
    for late in (
        StageEnded(sid("s1"), 1, Outcome.FAILED, False),
        StageRefused(sid("s1"), 1, "late"),
        StageStarted(sid("s1"), 1),
        StageProgressed(sid("s1"), 1, 5),
    ):
        assert coordinator.tell(late) == []
    assert coordinator.core.counters.stale == 4


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(arrival(make_stage()), id="arrives twice"),
        pytest.param(StageStarted(StageId("s1"), 2), id="an attempt never sent"),
        pytest.param(StageEnded(StageId("s1"), 0, Outcome.FAILED, False), id="attempt zero"),
        pytest.param(StageRefused(StageId("s1"), 1, "late"), id="refused after its first byte"),
    ],
)
def test_the_impossible_raises_with_the_story_and_changes_nothing(
    coordinator: Coordinator, event: object
) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage()), 1.0)
    coordinator.tell(StageStarted(sid("s1"), 1), 2.0)
    before = fingerprint(coordinator.core)
    with pytest.raises(InvariantViolation) as caught:
        coordinator.core.handle(event, 3.0)  # type: ignore[arg-type]
    assert caught.value.story == (
        "1.000000 arrived: 0.0",
        "1.000000 dispatched: m@n1",
        "2.000000 started: 1",
    )
    assert fingerprint(coordinator.core) == before
