"""What is booked for a stage at its node, and what a better prediction changes."""

from __future__ import annotations

import pytest

from maestroctl.domain.ids import NodeName
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.scheduler.effects import (
    DispatchStage,
    RebookStage,
    ResolveStage,
)
from maestroctl.scheduler.events import (
    PredictionArrived,
    StageEnded,
    StageProgressed,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_fleet,
    make_stage,
)
from tests.unit.scheduler.conftest import Coordinator, dispatch, fill, sid


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
