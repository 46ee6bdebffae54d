"""What each baseline prefers."""

from __future__ import annotations

from collections import Counter

import pytest

from maestroctl.domain.ids import NodeName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.units import GIB
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.registry import ROUTINGS
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.testing.coordinator_builders import (
    PREDICTION,
    arrival,
    make_fleet,
    make_stage,
    node_says,
)
from tests.unit.scheduler.routing.support import (
    ASLEEP,
    M,
    fill,
    fleet_of,
    node,
    place_of,
    stage_of,
)


def route(policy: str, fleet: FleetState, **stage: object) -> str | None:
    place = ROUTINGS[policy](PolicySpec()).route(stage_of(**stage), fleet, 0.0).place  # type: ignore[arg-type]
    return None if place is None else place.node.name


def test_nearest_goes_to_the_shortest_round_trip_whatever_is_awake_there() -> None:
    fleet = fleet_of(node("n1"), node("n2", ASLEEP), rtt_s={"n1": 0.1, "n2": 0.01})
    assert route("nearest", fleet) == "n2"
    fill(fleet, "n2", 9.0, 9.0)
    assert route("nearest", fleet) == "n1"


def test_round_robin_takes_every_place_in_turn() -> None:
    fleet = fleet_of(*(node(f"n{k}", slots=9) for k in (1, 2, 3)))
    turns = []
    for seq in range(1, 7):
        name = route("round_robin", fleet)
        assert name is not None
        turns.append(name)
        fleet.reserve(place_of(fleet, name), seq, 10)
    assert turns == ["n1", "n2", "n3"] * 2


def test_least_loaded_counts_stages_of_any_model_on_the_node() -> None:
    fleet = fleet_of(node("n1", slots=5), node("n2", slots=5))
    fill(fleet, "n1", 9.0)
    assert route("least_loaded", fleet) == "n2"


@pytest.mark.parametrize("number", range(5))
def test_power_of_two_is_the_same_for_a_stage_asked_twice(number: int) -> None:
    fleet = fleet_of(*(node(f"n{k}", slots=9) for k in range(8)))
    policy = ROUTINGS["power_of_two"](PolicySpec())
    stage = stage_of()
    stage.stage_id = make_stage(f"s{number}").stage_id
    first = policy.route(stage, fleet, 0.0)
    assert policy.route(stage, fleet, 5.0) == first


def test_power_of_two_spreads_stages_and_avoids_the_full_one() -> None:
    fleet = fleet_of(*(node(f"n{k}", slots=500) for k in range(4)))
    policy = ROUTINGS["power_of_two"](PolicySpec())
    for seq in range(1, 401):
        stage = stage_of()
        stage.stage_id = make_stage(f"s{seq}").stage_id
        place = policy.route(stage, fleet, 0.0).place
        assert place is not None
        fleet.reserve(place, seq, 10)
    loads = Counter({name: place.in_flight for name, place in fleet.places(M).items()})
    assert max(loads.values()) - min(loads.values()) < 20


def test_bin_packing_fills_the_fuller_awake_engine_first() -> None:
    fleet = fleet_of(node("n1", slots=4), node("n2", slots=4), node("n3", None))
    fill(fleet, "n2", 9.0)
    assert route("bin_packing", fleet) == "n2"
    fill(fleet, "n2", 9.0, 9.0, 9.0)
    assert route("bin_packing", fleet) == "n1"


def test_bin_packing_brings_a_model_up_where_it_fits_tightest() -> None:
    fleet = fleet_of(
        node("n1", None, free_bytes=9 * GIB),
        node("n2", None, free_bytes=2 * GIB),
        node("n3", None, free_bytes=GIB // 2),
    )
    assert route("bin_packing", fleet) == "n2"


def test_affinity_goes_home_while_home_has_a_slot() -> None:
    fleet = fleet_of(node("n1"), node("n2"))
    policy = ROUTINGS["affinity"](PolicySpec())
    stage = stage_of(role="writer")
    stage.job.homes = {"writer": ("m@n2", 800), "reader": ("m@n1", 800)}
    home = policy.route(stage, fleet, 0.0).place
    assert home is place_of(fleet, "n2")
    fill(fleet, "n2", 9.0, 9.0)
    assert policy.route(stage, fleet, 0.0).place is place_of(fleet, "n1")


def test_a_dispatched_stage_is_remembered_as_the_home_of_its_role() -> None:

    core = CoordinatorCore(make_fleet(), 1)
    core.handle(node_says(), 0.0)
    core.handle(arrival(make_stage(prompt_tokens=70, role="writer"), PREDICTION), 0.0)
    [job] = core._tables.jobs
    assert job.homes == {"writer": ("m@n1", 70)}
    assert core._tables.fleet.nodes[NodeName("n1")].in_flight == 1
