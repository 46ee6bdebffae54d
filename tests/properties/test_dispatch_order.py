"""Nobody is overtaken for ever, and no slot stands open for a stage that may have it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import NodeName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import LATE_RANK, StageState
from maestroctl.scheduler.registry import ORDERINGS
from tests.properties.dispatch_world import MAX_WAIT_S, NODES, STEPS, DispatchWorld, Sending, Step

RESERVING = [name for name, make in ORDERINGS.items() if make(PolicySpec()).reserves_slots]


def _is_late(stage: StageState) -> bool:
    return stage.rank == LATE_RANK


def _may_have_slot_of(stage: StageState, sent: StageState, ordering: str) -> bool:
    """Slots of an interactive stage may be closed to batch stages."""
    return (
        ordering not in RESERVING
        or stage.stage.service_class is ServiceClass.INTERACTIVE
        or sent.stage.service_class is ServiceClass.BATCH
    )


def _overtaken(sending: Sending, ordering: str) -> list[StageState]:
    """Stages that had waited too long when a younger one was sent in their place."""
    sent = sending.sent
    return [
        stage
        for stage in sending.passed
        if sending.at_s - stage.stage.arrival_s > MAX_WAIT_S
        and stage.stage.arrival_s < sent.stage.arrival_s
        and _is_late(stage) == _is_late(sent)
        and _may_have_slot_of(stage, sent, ordering)
    ]


@pytest.mark.parametrize("ordering", ORDERINGS)
@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_who_has_waited_too_long_is_overtaken_by_older_stages_alone(
    ordering: str, steps: list[Step]
) -> None:
    world = DispatchWorld(ordering)
    for step in steps:
        for sending in world.play(step):
            assert not _overtaken(sending, ordering)


@pytest.mark.parametrize("ordering", ORDERINGS)
@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_nobody_waits_while_a_slot_is_open_that_is_not_kept_for_others(
    ordering: str, steps: list[Step]
) -> None:
    world = DispatchWorld(ordering)
    for step in steps:
        world.play(step)
        waiting = {stage.stage.service_class for stage in world.core._tables.queue}
        for name in NODES:
            place = next(iter(world.core._tables.fleet.nodes[NodeName(name)].places.values()))
            held, batch = world.held(name)
            assert held <= world.slots
            assert place.reserved <= (world.slots - 1 if ordering in RESERVING else 0)
            if place.blocked_until_s is not None or held == world.slots:
                continue
            assert ServiceClass.INTERACTIVE not in waiting
            if ServiceClass.BATCH in waiting:
                assert place.reserved > 0
                assert batch >= world.slots - place.reserved


@pytest.mark.parametrize("ordering", RESERVING)
def test_a_batch_stage_does_wait_beside_a_slot_that_is_kept(ordering: str) -> None:
    world = DispatchWorld(ordering)
    for _ in range(8):
        world.play(("batch", 100, 3))
        for _ in range(12):
            world.play(("interactive", 10, 3))
        for _ in range(13):
            world.play(("end", 10, 0))
    while world.at_node:
        world.play(("end", 10, 0))
    for _ in range(2 * world.slots):
        world.play(("batch", 100, 3))
    kept = _kept(world)
    assert min(kept) > 0
    assert [world.held(name)[1] for name in NODES] == [world.slots - number for number in kept]
    assert world.core.num_queued == sum(kept)


def _kept(world: DispatchWorld) -> list[int]:
    """R of each node."""
    nodes = world.core._tables.fleet.nodes
    return [next(iter(nodes[name].places.values())).reserved for name in map(NodeName, NODES)]
