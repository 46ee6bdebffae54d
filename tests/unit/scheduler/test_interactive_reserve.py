"""Slots kept for interactive stages: those they fill, and one standard deviation."""

from __future__ import annotations

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.interactive_reserve import InteractiveReserves
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.testing.coordinator_builders import (
    make_engine,
    make_profile,
    make_snapshot,
    make_stage,
)

M = ModelName("m")


def _fleet(slots: int = 9) -> FleetState:
    fleet = FleetState(1)
    fleet.apply(make_snapshot(engines=[make_engine(slots=slots)]), 0.0, 0.0)
    return fleet


def _reserved(fleet: FleetState) -> list[int]:
    return [place.reserved for place in fleet.places(M).values()]


def _play(reserves: InteractiveReserves, rate_s: float, served_s: float, until_s: float) -> None:
    for number in range(int(until_s * rate_s)):
        stage = make_stage(f"i{number}", service_class=ServiceClass.INTERACTIVE)
        reserves.stage_arrived(stage, number / rate_s)
        reserves.stage_ended(M, ServiceClass.INTERACTIVE, served_s, number / rate_s)


def test_as_many_slots_are_kept_as_are_filled_and_a_standard_deviation() -> None:
    fleet = _fleet()
    reserves = InteractiveReserves(fleet, enabled=True)
    _play(reserves, 0.5, 5.0, 600.0)
    assert reserves.kept(M) == 5  # a = 0.5 x 5; a + sqrt(a) = 4.08
    assert _reserved(fleet) == [6], "of nine slots eight are served at once"


def test_one_reserve_of_the_fleet_is_kept_on_as_few_places_as_hold_it() -> None:
    fleet = _fleet()
    for name in ("n2", "n3", "n4"):
        fleet.apply(make_snapshot(name, [make_engine(slots=9, node=name)]), 0.0, 0.0)
    reserves = InteractiveReserves(fleet, enabled=True)
    _play(reserves, 2.0, 5.0, 600.0)
    assert reserves.kept(M) == 14  # a = 10; each of four alone: 4 x ceil(2.5 + 1.6)
    assert _reserved(fleet) == [8, 8, 0, 0], "seven of eight, seven, and the ninth of both"
    fleet.lose(NodeName("n1"))
    reserves.places_replaced()
    assert _reserved(fleet) == [8, 8, 0]


def test_nothing_is_kept_where_no_engine_is_awake() -> None:
    fleet = _fleet()
    fleet.apply(make_snapshot("n0", [], [make_profile()]), 0.0, 0.0)
    reserves = InteractiveReserves(fleet, enabled=True)
    _play(reserves, 0.5, 5.0, 600.0)
    assert _reserved(fleet) == [6, 0]
    fleet.apply(make_snapshot("n0", [make_engine(slots=9, node="n0")]), 0.0, 600.0)
    reserves.places_changed(fleet.nodes[NodeName("n0")].places.values())
    assert _reserved(fleet) == [0, 6], "n0 is awake by now, and comes first"


def test_long_batch_stages_keep_no_more_slots() -> None:
    reserves = InteractiveReserves(_fleet(), enabled=True)
    _play(reserves, 0.5, 5.0, 600.0)
    reserves.stage_ended(M, ServiceClass.BATCH, 900.0, 600.0)
    assert reserves.kept(M) == 5


def test_one_slot_at_least_is_left_to_batch_stages() -> None:
    fleet = _fleet(slots=3)
    reserves = InteractiveReserves(fleet, enabled=True)
    _play(reserves, 2.0, 60.0, 300.0)
    assert _reserved(fleet) == [2]
    fleet.apply(make_snapshot(engines=[make_engine(slots=2)]), 0.0, 1.0)
    reserves.places_changed(fleet.places(M).values())
    assert _reserved(fleet) == [0], "it serves one at once"


def test_nothing_is_kept_once_no_interactive_stage_has_come_for_long() -> None:
    fleet = _fleet()
    reserves = InteractiveReserves(fleet, enabled=True)
    _play(reserves, 0.5, 5.0, 600.0)
    reserves.stage_ended(M, ServiceClass.BATCH, 5.0, 2000.0)
    assert _reserved(fleet) == [0]


def test_a_late_arrival_says_that_slots_were_opened() -> None:
    reserves = InteractiveReserves(_fleet(), enabled=True)
    _play(reserves, 1.0, 5.0, 600.0)
    stage = make_stage("late", service_class=ServiceClass.INTERACTIVE)
    assert reserves.stage_arrived(stage, 720.0)


def test_orders_that_do_not_ask_for_it_keep_no_slots() -> None:
    fleet = _fleet()
    _play(InteractiveReserves(fleet, enabled=False), 0.5, 5.0, 600.0)
    assert _reserved(fleet) == [0]
