"""What one event may send, and where a stage stands when its prediction changes while it waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.domain.ids import ModelName, StageId, TimerId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_dispatch import MAX_SENDS
from maestroctl.scheduler.effects import CoordinatorEffect, DispatchStage, SetTimer
from maestroctl.scheduler.events import NodeLost, PredictionArrived, StageEnded, TimerFired
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator

SHORT, LONG = Prediction(10.0, 20.0), Prediction(1e5, 2e5)


def sent(effects: list[CoordinatorEffect]) -> list[str]:
    return [effect.stage_id for effect in effects if isinstance(effect, DispatchStage)]


@pytest.mark.parametrize("routing", ["single_node", "least_loaded", "maestro", "maestroctl"])
def test_a_node_with_thousands_of_slots_is_filled_over_several_events(
    coordinator: Coordinator, routing: str
) -> None:
    coordinator.begin(make_fleet(policy=PolicySpec(routing=routing)), max_queued=1000)
    names = [f"s{number:03}" for number in range(2 * MAX_SENDS + 10)]
    coordinator.connect()
    coordinator.tell(NodeLost(make_snapshot().node, "the link broke"))
    for name in names:
        coordinator.tell(arrival(make_stage(name)))
    effects = coordinator.tell(node_says(make_snapshot(engines=[make_engine(slots=1000)])), 1.0)
    order = sent(effects)
    assert len(order) == MAX_SENDS
    assert SetTimer(TimerId("pump"), 1.0) in effects
    assert sent(coordinator.tell(arrival(make_stage("upstart")), 1.0)) == [], "others came before"
    while len(order) <= len(names):
        more = sent(coordinator.tell(TimerFired(TimerId("pump")), 1.0))
        assert 0 < len(more) <= MAX_SENDS
        order += more
    assert order == [*names, "upstart"]
    assert sent(coordinator.tell(arrival(make_stage("next")), 2.0)) == ["next"]


def deadline(name: str, by_s: float, prediction: Prediction) -> object:
    return arrival(replace(make_stage(name), deadline_s=by_s), prediction)


@pytest.fixture
def slo(coordinator: Coordinator) -> Coordinator:
    """By deadline; both slots taken by `a` and `b`."""
    coordinator.begin(make_fleet(policy=PolicySpec(ordering="workflow_slo")))
    coordinator.connect()
    for name in ("a", "b"):
        coordinator.tell(arrival(make_stage(name), SHORT))
    return coordinator


def end(coordinator: Coordinator, name: str, at_s: float) -> list[str]:
    return sent(coordinator.tell(StageEnded(StageId(name), 1, Outcome.FINISHED, True), at_s))


def test_a_late_stage_that_turns_out_short_is_not_late_any_more(slo: Coordinator) -> None:
    for name, by_s, prediction in (("long", 100.0, LONG), ("x", 200.0, SHORT), ("y", 300.0, SHORT)):
        slo.tell(deadline(name, by_s, prediction))  # type: ignore[arg-type]
    assert end(slo, "a", 1.0) == ["x"], "`long` cannot be in time, and went behind"
    slo.tell(PredictionArrived(StageId("long"), SHORT), 2.0)
    assert end(slo, "b", 3.0) == ["long"]


def test_a_late_stage_stays_late_by_a_prediction_that_says_so_too(slo: Coordinator) -> None:
    for name, by_s, prediction in (("long", 100.0, LONG), ("x", 200.0, SHORT), ("y", 300.0, SHORT)):
        slo.tell(deadline(name, by_s, prediction))  # type: ignore[arg-type]
    assert end(slo, "a", 1.0) == ["x"]
    slo.tell(PredictionArrived(StageId("long"), Prediction(0.9e5, 1e5)), 2.0)
    assert end(slo, "b", 3.0) == ["y"]
    assert end(slo, "x", 4.0) == ["long"]


def test_a_new_prediction_orders_a_stage_by_the_model_that_was_chosen_for_it(
    coordinator: Coordinator,
) -> None:
    policy = PolicySpec(ordering="stjf", model_choice="least_loaded")
    coordinator.begin(make_fleet(models=("big", "m"), policy=policy))
    coordinator.connect()
    for name in ("a", "b"):
        coordinator.tell(arrival(make_stage(name), SHORT))
    coordinator.tell(arrival(make_stage("one"), Prediction(50.0, 60.0)))
    coordinator.tell(arrival(make_stage("either", models=("big", "m")), SHORT))
    told = replace(SHORT, total_tokens={ModelName("big"): 9000.0, ModelName("m"): 10.0})
    coordinator.tell(PredictionArrived(StageId("either"), told), 1.0)
    assert end(coordinator, "a", 2.0) == ["either"]


def test_a_batch_stage_has_no_room_where_slots_are_kept(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(policy=PolicySpec(ordering="workflow_slo")))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine(slots=3)])))
    for number in range(40):
        name = f"s{number}"
        coordinator.tell(arrival(make_stage(name, arrival_s=float(number)), SHORT), float(number))
        end(coordinator, name, number + 0.9)
    batch = make_stage("batch", service_class=ServiceClass.BATCH)
    coordinator.tell(arrival(batch, LONG), 41.0)
    again = make_stage("again", service_class=ServiceClass.BATCH)
    assert coordinator.core.has_room(make_stage("talk"))
    assert not coordinator.core.has_room(again)
    assert sent(coordinator.tell(arrival(again, LONG), 42.0)) == []
