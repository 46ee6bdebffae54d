"""The life of a stage: given these events, exactly these effects."""

from __future__ import annotations

import random

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import JobId, ModelName, NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_state import StageStatus
from maestroctl.scheduler.effects import (
    AdvisePrewarm,
    CancelTimer,
    DispatchStage,
    RebookStage,
    RecordDecision,
    ResolveStage,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    NodeLost,
    PredictionArrived,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.scheduler.routing.look_ahead import PrewarmAdvice
from maestroctl.testing.coordinator_builders import (
    arrival,
    fingerprint,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator


def sid(name: str) -> StageId:
    return StageId(name)


def dispatch(
    stage: str = "s1",
    seq: int = 1,
    attempt: int = 1,
    node: str = "n1",
    model: str = "m",
    key: float = 0.0,
    prompt_tokens: int = 50,
    booked_tokens: int = 150,
) -> DispatchStage:
    return DispatchStage(
        sid(stage),
        attempt,
        NodeName(node),
        ModelName(model),
        1,
        seq,
        prompt_tokens,
        booked_tokens,
        ServiceClass.INTERACTIVE,
        key,
    )


def fill(coordinator: Coordinator, at_s: float = 0.0) -> None:
    """Take both slots of `n1`."""
    coordinator.tell(arrival(make_stage("a")), at_s)
    coordinator.tell(arrival(make_stage("b")), at_s)


# --- the plain path -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("q90", "max_tokens", "prompt", "booked"),
    [
        pytest.param(100.0, None, 50, 150, id="the admission quantile"),
        pytest.param(100.2, None, 50, 151, id="rounded up"),
        pytest.param(100.0, 20, 50, 70, id="clamped to max_tokens"),
        pytest.param(9000.0, None, 50, 4096, id="clamped to the model's length"),
        pytest.param(9000.0, 8000, 4000, 4096, id="both clamps"),
        pytest.param(0.0, None, 50, 51, id="at least one token comes"),
        pytest.param(10.0, None, 5000, 5001, id="a prompt that looks too long is not refused here"),
    ],
)
def test_prompt_and_clamped_quantile_are_booked(
    coordinator: Coordinator, q90: float, max_tokens: int | None, prompt: int, booked: int
) -> None:
    coordinator.connect()
    stage = make_stage(prompt_tokens=prompt, max_tokens=max_tokens)
    assert coordinator.tell(arrival(stage, Prediction(0.0, q90))) == [
        dispatch(prompt_tokens=prompt, booked_tokens=booked)
    ]


@pytest.mark.parametrize(("quantile", "booked"), [(0.5, 90), (0.9, 150), (0.99, 260)])
def test_admission_may_book_another_quantile(
    coordinator: Coordinator, quantile: float, booked: int
) -> None:
    coordinator.begin(make_fleet(policy=PolicySpec(ordering="fcfs", admission_quantile=quantile)))
    coordinator.connect()
    effects = coordinator.tell(arrival(make_stage(), Prediction(40.0, 100.0)))
    assert effects == [dispatch(booked_tokens=booked)]


def test_a_better_prediction_corrects_the_booking_and_under_fcfs_not_the_order(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c", arrival_s=1.0)), 1.0)
    coordinator.tell(arrival(make_stage("d", arrival_s=2.0)), 2.0)
    better = Prediction(5.0, 10.0)
    told = RebookStage(sid("a"), 1, NodeName("n1"), 1, 3, prompt_tokens=50, booked_tokens=60)
    assert coordinator.tell(PredictionArrived(sid("a"), better), 2.0) == [told]
    for name in ("a", "d", "c"):  # the node knows of the one, and is not told of what waits here
        assert coordinator.tell(PredictionArrived(sid(name), better), 2.0) == []
    assert coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 3.0) == [
        ResolveStage(sid("a"), Outcome.FINISHED),
        dispatch("c", seq=4, key=1.0, booked_tokens=60),
    ]


def test_under_sjf_a_better_prediction_moves_a_waiting_stage(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(policy=PolicySpec(ordering="sjf")))
    coordinator.connect()
    fill(coordinator)
    for name, tokens in (("short", 50.0), ("long", 900.0)):
        coordinator.tell(arrival(make_stage(name), Prediction(tokens, tokens)))
    assert [view.stage_id for view in coordinator.core.queued()] == ["short", "long"]
    coordinator.tell(PredictionArrived(sid("long"), Prediction(5.0, 10.0)), 1.0)
    assert [view.stage_id for view in coordinator.core.queued()] == ["long", "short"]
    effects = coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 2.0)
    assert [e.stage_id for e in effects if isinstance(e, DispatchStage)] == ["long"]


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


def test_a_prediction_moves_a_waiting_stage_in_an_order_by_length(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(policy=PolicySpec(ordering="sjf")))
    coordinator.connect()
    fill(coordinator)
    for name, tokens in (("long", 900.0), ("middle", 300.0), ("short", 100.0)):
        coordinator.tell(arrival(make_stage(name), Prediction(tokens, 1000.0)), 1.0)
    assert [view.stage_id for view in coordinator.core.queued()] == ["short", "middle", "long"]
    assert coordinator.tell(PredictionArrived(sid("long"), Prediction(10.0, 20.0)), 2.0) == []
    assert [view.stage_id for view in coordinator.core.queued()] == ["long", "short", "middle"]
    assert coordinator.tell(PredictionArrived(sid("short"), Prediction(500.0, 600.0)), 2.0) == []
    assert [view.stage_id for view in coordinator.core.queued()] == ["long", "middle", "short"]
    effects = coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 3.0)
    (sent,) = (effect for effect in effects if isinstance(effect, DispatchStage))
    assert (sent.stage_id, sent.booked_tokens) == ("long", 70)


def test_a_late_prediction_never_books_less_than_what_came(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage(), Prediction(50.0, 100.0)))
    coordinator.tell(StageProgressed(sid("s1"), 1, 70))
    told = RebookStage(sid("s1"), 1, NodeName("n1"), 1, 2, prompt_tokens=50, booked_tokens=120)
    assert coordinator.tell(PredictionArrived(sid("s1"), Prediction(5.0, 10.0))) == [told]


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


# --- cancelling ---------------------------------------------------------------------------------


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


# --- failing ------------------------------------------------------------------------------------


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


# --- refusals -----------------------------------------------------------------------------------


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


# --- stale and impossible -----------------------------------------------------------------------


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


# --- records, advice, views ---------------------------------------------------------------------


def test_a_stage_that_waits_has_an_order_record_and_says_so_when_it_goes(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c", arrival_s=1.0)), 1.0)
    coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 2.5)
    order, route = [effect.record for effect in coordinator.records[-2:]]
    assert (order.kind, order.choice) == ("order", "queue")
    assert order.reason == "m: no free slot; 0 other stages wait; key 1"
    assert route.reason == "the only place with a free slot, after 1.500 s in the queue"


def test_a_choice_among_models_is_recorded(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine("other")])))
    effects = coordinator.tell(arrival(make_stage(models=["m", "other"])))
    assert effects == [dispatch(model="other")]
    record = coordinator.records[0].record
    assert (record.kind, record.choice) == ("choose_model", "other")


def test_the_look_ahead_is_asked_at_each_dispatch(coordinator: Coordinator) -> None:
    class Oracle:
        def advise(self, stage, _fleet, now_s):  # type: ignore[no-untyped-def]
            assert stage.place is not None
            nodes = (NodeName("n1"), NodeName("n2"))
            return [PrewarmAdvice(node, ModelName("next"), 0.9, now_s + 5.0) for node in nodes]

    coordinator.begin(look_ahead=Oracle())
    coordinator.connect()
    assert coordinator.tell(arrival(make_stage()), 1.0) == [
        dispatch(),
        AdvisePrewarm(NodeName("n1"), ModelName("next"), 0.9, 6.0, 1, seq=1),  # after the stage
        AdvisePrewarm(NodeName("n2"), ModelName("next"), 0.9, 6.0, 1, seq=0),
    ]
    assert coordinator.tell(arrival(make_stage("s2")), 1.0)[0] == dispatch("s2", seq=2)


def test_attained_service_counts_neither_the_queue_nor_the_wake(coordinator: Coordinator) -> None:
    engine = make_engine(slots=1, status=EngineStatus.SLEEPING, ready_in_s=2.0)
    coordinator.tell(node_says(make_snapshot(engines=[engine])))
    coordinator.tell(arrival(make_stage("a", job="j")), 0.0)
    coordinator.tell(arrival(make_stage("b", job="j")), 0.0)
    coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True, Usage(50, 30)), 10.0)
    coordinator.tell(StageEnded(sid("b"), 1, Outcome.FINISHED, True, Usage(50, 12)), 13.0)
    job = coordinator.core.job(JobId("j"))
    assert job is not None
    assert (job.attained_s, job.attained_tokens) == (8.0 + 3.0, 42)


def test_a_model_with_no_engine_yet_is_offered_its_assumed_slots(coordinator: Coordinator) -> None:
    profile = make_profile("m", max_batch=2)
    coordinator.tell(node_says(make_snapshot(engines=[], profiles=[profile])))
    for name in ("a", "b", "c", "d"):
        coordinator.tell(arrival(make_stage(name)))
    assert coordinator.core.num_in_flight == 3
    assert coordinator.core.num_queued == 1
