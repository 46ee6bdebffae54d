"""Whatever becomes of nodes, models and predictions: nobody is lost, overtaken or left waiting."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler import coordinator_dispatch
from maestroctl.scheduler.coordinator_state import LATE_RANK, StageState
from maestroctl.scheduler.ordering.edf import deadline_of
from maestroctl.scheduler.ordering.slack import Slack
from maestroctl.scheduler.registry import ORDERINGS
from maestroctl.scheduler.routing.fleet_state import Place
from tests.properties.fleet_world import MAX_WAIT_S, NODES, STEPS, FleetWorld, Sending, Step

MAX_SENDS = 3
"""Small, so that many events have more to send than they may."""
RESERVING = [name for name, make in ORDERINGS.items() if make(PolicySpec()).reserves_slots]


# --- who is sent first ---------------------------------------------------------------------------


def _could_go_instead(stage: StageState, sending: Sending, ordering: str) -> bool:
    """Nothing but the order says that `sent` and not this one got the slot."""
    effect, sent = sending.effect, sending.sent
    return (
        effect.model in stage.models
        and (effect.node, effect.model) not in stage.excluded
        and stage.avoid is None
        and (
            ordering not in RESERVING
            or stage.stage.service_class is ServiceClass.INTERACTIVE
            or sent.stage.service_class is ServiceClass.BATCH
        )
    )


def _turn(stage: StageState, at_s: float) -> tuple[float, float, str]:
    """Who goes first among stages of which all or none are late."""
    arrival_s = stage.stage.arrival_s
    if at_s - arrival_s > MAX_WAIT_S:
        return (-1.0, arrival_s, stage.stage_id)
    return (float(stage.rank), stage.key, stage.stage_id)


def _overtaken(sending: Sending, ordering: str) -> list[StageState]:
    """Stages that waited too long and lost a slot to a younger one."""
    sent = sending.sent
    return [
        stage
        for stage in sending.passed
        if sending.at_s - stage.stage.arrival_s > MAX_WAIT_S
        and stage.stage.arrival_s < sent.stage.arrival_s
        and (stage.rank == LATE_RANK) == (sent.rank == LATE_RANK)
        and _could_go_instead(stage, sending, ordering)
    ]


def _passed_over(sending: Sending, ordering: str) -> list[StageState]:
    """Stages whose turn was before that of the one that was sent."""
    sent = sending.sent
    return [
        stage
        for stage in sending.passed
        if (stage.rank == LATE_RANK) == (sent.rank == LATE_RANK)
        and _could_go_instead(stage, sending, ordering)
        and _turn(stage, sending.at_s) < _turn(sent, sending.at_s)
    ]


def _is_hopeless(stage: StageState, world: FleetWorld) -> bool:
    """Its deadline is past keeping, by the same judgement that moves it behind the others."""
    ordering = world.core._ordering
    deadline_s = deadline_of(stage.as_chosen, stage.job)
    if not isinstance(ordering, Slack) or deadline_s is None:
        return False
    return world.now_s + ordering.remaining_s(stage.as_chosen, stage.prediction) > deadline_s


def _kept_by_late(sending: Sending, world: FleetWorld) -> list[StageState]:
    """Stages in time that waited while one was sent, in its first turn, that was late already."""
    sent = sending.sent
    if sent.rank != 1 or not _is_hopeless(sent, world):
        return []
    return [
        stage
        for stage in sending.passed
        if stage.rank == 1
        and not _is_hopeless(stage, world)
        and _could_go_instead(stage, sending, world.ordering)
    ]


# --- who is left waiting -------------------------------------------------------------------------


def _is_cut_short(world: FleetWorld, stage: StageState) -> bool:
    return not world.core._dispatcher._unpumped.isdisjoint(stage.models)


def _left_beside(world: FleetWorld, place: Place) -> list[StageState]:
    """Stages that wait although a slot of the place is open to them."""
    name, model = place.node.name, place.model
    if name in world.draining or not place.is_usable or place.blocked_until_s is not None:
        return []
    held, batch = world.held(name, model)
    slots = world.said[name].get(model, 0)
    if held >= slots:
        return []
    is_kept = place.reserved > 0 and batch >= slots - place.reserved
    return [
        stage
        for stage in world.waiting()
        if model in stage.models
        and (name, model) not in stage.excluded
        and stage.avoid != name
        and not (is_kept and stage.stage.service_class is ServiceClass.BATCH)
        and not _is_cut_short(world, stage)
    ]


def _has_other_model(world: FleetWorld, stage: StageState) -> bool:
    """No node takes the models chosen for it, and one would take another candidate."""
    usable = {
        place.model
        for place in world.places()
        if place.is_usable and (place.node.name, place.model) not in stage.excluded
    }
    return usable.isdisjoint(stage.models) and not usable.isdisjoint(stage.stage.candidates)


def _check_reserve(world: FleetWorld, model: ModelName) -> None:
    """R once, on awake places, and as few as hold it."""
    kept = world.core._reserves.kept(model)
    serving, room, partly = 0, 0, 0
    for place in world.places():
        if place.model != model:
            continue
        most = place.capacity - 1
        beyond = max(0, place.slots - place.capacity)
        if place.readiness < 1.0 or not place.is_usable:
            assert place.reserved == 0, f"{place.name} serves nobody"
            continue
        room += most
        if place.reserved:
            serving += place.reserved - beyond
            partly += place.reserved - beyond < most
    assert serving == min(kept, room)
    assert partly <= 1


def _check(world: FleetWorld, sendings: list[Sending]) -> None:
    """Every rule, after every event."""
    assert len(sendings) <= MAX_SENDS + 1  # a stage that arrives, and those that a fallen R lets in
    is_timeless = world.routing == "single_node"
    for sending in sendings:
        assert not _kept_by_late(sending, world)
        if is_timeless:
            assert not _overtaken(sending, world.ordering)
            assert not _passed_over(sending, world.ordering)
    assert not [stage for stage in world.waiting() if _has_other_model(world, stage)]
    if is_timeless:
        for place in world.places():
            assert not _left_beside(world, place), place.name
    for model in ("a", "b"):
        _check_reserve(world, ModelName(model))


def _wind_up(world: FleetWorld) -> None:
    """Everybody who waits is served once nodes are there and stages end."""
    world.draining.clear()
    for name, models in NODES.items():
        world.slots[name] = dict.fromkeys(models, 3)
    for _ in range(300):
        for name in NODES:
            world.tell(world.snapshot(name))
        world.advance(6.0)
        for _ in range(len(world.at_node)):
            world.play(("end", 10, 0))
        if not world.live:
            return
    raise AssertionError(f"{list(world.live)} wait for ever")


def _live_through(world: FleetWorld, steps: list[Step]) -> None:
    with patch.object(coordinator_dispatch, "MAX_SENDS", MAX_SENDS):
        for step in steps:
            world.play(step)
        _wind_up(world)


@pytest.mark.parametrize("ordering", ORDERINGS)
@settings(deadline=None, max_examples=40)
@given(steps=STEPS)
def test_nobody_is_lost_overtaken_or_left_beside_an_open_slot(
    ordering: str, steps: list[Step]
) -> None:
    _live_through(FleetWorld(ordering, on_told=_check), steps)


@pytest.mark.parametrize("ordering", ["fcfs", "workflow_srtf", "workflow_slo"])
@settings(deadline=None, max_examples=40)
@given(steps=STEPS)
def test_the_same_where_stages_wait_by_choice(ordering: str, steps: list[Step]) -> None:
    _live_through(FleetWorld(ordering, "maestroctl", "maestroctl", _check), steps)
