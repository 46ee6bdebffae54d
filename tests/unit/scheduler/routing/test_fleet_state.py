"""Places: opened and closed by snapshots and reservations, each reservation counted once."""

from __future__ import annotations

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.scheduler.routing.fleet_state import FleetState, assumed_slots
from maestroctl.testing.coordinator_builders import make_engine, make_profile, make_snapshot

M, N1 = ModelName("m"), NodeName("n1")


@pytest.mark.parametrize(
    ("max_batch", "pool_holds", "slots"),
    [
        pytest.param(4, 4, 5, id="one more than the batch"),
        pytest.param(8, 3, 4, id="one more than the pool admits"),
        pytest.param(8, 0, 2, id="the pool admits one at least"),
    ],
)
def test_assumed_slots(max_batch: int, pool_holds: int, slots: int) -> None:
    profile = make_profile("m", max_batch=pool_holds)
    object.__setattr__(profile, "max_batch", max_batch)
    assert assumed_slots(profile) == slots


def test_a_place_closes_with_its_last_slot_and_opens_with_the_first_free_one() -> None:
    fleet = FleetState(1)
    fleet.apply(make_snapshot(engines=[make_engine(slots=1)]), 0.0, 0.0)
    place = fleet.open_places(M)[N1]
    fleet.reserve(place, 1, 70)
    assert not fleet.open_places(M)
    assert (place.in_flight, place.tokens, place.node.unapplied) == (1, 70, {1: (M, 70)})
    fleet.release(place, 1, 70)
    assert fleet.open_places(M) == {N1: place}
    assert (place.in_flight, place.tokens, place.node.unapplied) == (0, 0, {})


def test_a_snapshot_of_another_epoch_applies_no_command_of_this_one() -> None:
    fleet = FleetState(3)
    fleet.apply(make_snapshot(epoch=2), 0.0, 0.0)
    place = fleet.open_places(M)[N1]
    fleet.reserve(place, 5, 70)
    fleet.apply(make_snapshot(epoch=2, applied_seq=9), 0.0, 1.0)
    assert place.node.unapplied == {5: (M, 70)}
    fleet.apply(make_snapshot(epoch=3, applied_seq=5), 0.0, 2.0)
    assert place.node.unapplied == {}


def test_a_failed_engine_may_be_asked_by_one_stage_at_a_time() -> None:
    fleet = FleetState(1)
    engine = make_engine(slots=0, status=EngineStatus.FAILED)
    fleet.apply(make_snapshot(engines=[engine]), 0.0, 0.0)
    place = fleet.open_places(M)[N1]
    assert (place.slots, place.failure) == (1, "its engine has failed")


def test_whether_what_can_be_served_has_changed() -> None:
    fleet = FleetState(1)
    assert fleet.apply(make_snapshot(), 0.0, 0.0)
    assert not fleet.apply(make_snapshot(engines=[make_engine(slots=9)]), 0.0, 0.0)
    failed = make_engine(status=EngineStatus.FAILED)
    assert fleet.apply(make_snapshot(engines=[failed]), 0.0, 0.0)
    assert fleet.apply(make_snapshot(draining=True), 0.0, 0.0)
    assert fleet.apply(make_snapshot(), 0.0, 0.0)
    assert fleet.apply(make_snapshot(never_fits={"m": "too big"}), 0.0, 0.0)
    assert not list(fleet.usable([M]))
