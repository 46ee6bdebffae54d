"""Slots kept for interactive stages, as the coordinator's records and readers show them."""

from __future__ import annotations

import pytest

from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.records import Candidate, DecisionRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.events import StageEnded
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator

SLOTS = 6
"""Of which five are served at once: one more waits at the engine."""
SERVED_S = 2.0
"""One interactive stage of this length every 2 s: a = 1, so R = 2 of the five."""
KEPT = 3
"""R, and the slot that is not served."""


def _send(coordinator: Coordinator, name: str, service_class: ServiceClass, at_s: float) -> None:
    stage = make_stage(name, arrival_s=at_s, service_class=service_class, external=False)
    coordinator.tell(arrival(stage), at_s)


def _end(coordinator: Coordinator, name: str, at_s: float) -> None:
    coordinator.tell(StageEnded(StageId(name), 1, Outcome.FINISHED, True), at_s)


def _records_of(coordinator: Coordinator, name: str) -> list[DecisionRecord]:
    return [effect.record for effect in coordinator.records if effect.record.subject == name]


@pytest.fixture(params=["single_node", "maestroctl", "power_of_two"])
def reserving(
    coordinator: Coordinator, request: pytest.FixtureRequest
) -> tuple[Coordinator, float]:
    """A node that keeps slots, and when it does."""
    policy = limited(ordering="workflow_srtf", routing=request.param)
    coordinator.begin(make_fleet(policy=policy))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine(slots=SLOTS)])))
    now_s = 0.0
    for number in range(300):
        _send(coordinator, f"i{number}", ServiceClass.INTERACTIVE, now_s)
        now_s += SERVED_S
        coordinator.tell(node_says(make_snapshot(engines=[make_engine(slots=SLOTS)])), now_s)
        _end(coordinator, f"i{number}", now_s)
    assert coordinator.core.kept_slots() == {(ModelName("m"), NodeName("n1")): KEPT}
    return coordinator, now_s


def test_a_batch_stage_kept_from_free_slots_says_so_with_their_number(
    reserving: tuple[Coordinator, float],
) -> None:
    coordinator, now_s = reserving
    for number in range(4):
        _send(coordinator, f"b{number}", ServiceClass.BATCH, now_s)
    (order,) = _records_of(coordinator, "b3")
    assert (order.kind, order.choice) == ("order", "queue")
    assert order.reason.startswith("no free slot outside the interactive reserve for m; 0 other")
    assert order.candidates == (Candidate("m@n1", None, {"slots": SLOTS, "free": 3, "kept": KEPT}),)


def test_a_stage_that_waited_for_a_full_engine_says_it_when_a_kept_slot_is_freed_and_only_once(
    reserving: tuple[Coordinator, float],
) -> None:
    coordinator, now_s = reserving
    for number in range(3):
        _send(coordinator, f"b{number}", ServiceClass.BATCH, now_s)
    for name in ("x", "y", "z"):
        _send(coordinator, name, ServiceClass.INTERACTIVE, now_s)
    _send(coordinator, "late", ServiceClass.BATCH, now_s)
    _send(coordinator, "later", ServiceClass.BATCH, now_s)
    for name in ("x", "y", "z"):
        _end(coordinator, name, now_s + 1.0)
    full, kept = _records_of(coordinator, "late")
    assert full.reason.startswith("no free slot for m; 0 other stages wait")
    assert full.candidates == ()
    assert kept.reason.startswith("no free slot outside the interactive reserve for m; 1 other")
    terms = kept.candidates[0].terms
    assert (terms["slots"], terms["free"]) == (SLOTS, 1)
    assert terms["kept"] > KEPT, "three came at once"
    assert len(_records_of(coordinator, "later")) == 1  # it is not its turn


def test_an_interactive_stage_is_never_kept_from_a_slot(
    reserving: tuple[Coordinator, float],
) -> None:
    coordinator, now_s = reserving
    for number in range(4):
        _send(coordinator, f"b{number}", ServiceClass.BATCH, now_s)
    _send(coordinator, "x", ServiceClass.INTERACTIVE, now_s)
    assert [record.kind for record in _records_of(coordinator, "x")] == ["route"]
