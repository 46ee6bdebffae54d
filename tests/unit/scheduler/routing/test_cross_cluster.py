"""Maestro Algorithm 3: the argmax beside brute force, and what a decision says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ClusterName, NodeName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import GIB
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import CoordinatorEffect, DispatchStage, SetTimer
from maestroctl.scheduler.events import NodeSnapshotReceived, StageRefused
from maestroctl.scheduler.registry import ROUTINGS
from maestroctl.scheduler.routing.cross_cluster import FRESH_S, MAX_OTHERS, stage_need
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.pipeline import MAX_CANDIDATES
from maestroctl.scheduler.routing.placement_score import Weights, score_place, weigh_place
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_fleet,
    make_profile,
    make_stage,
)
from tests.unit.scheduler.conftest import Coordinator
from tests.unit.scheduler.routing.support import (
    ASLEEP,
    AWAKE,
    M,
    fill,
    fleet_of,
    node,
    place_of,
    stage_of,
)

POLICY = PolicySpec(readiness_weight=1.5, degradation_weight=0.7)
FORMS = ("maestro", "maestroctl")
CURVE = ((GIB, 0.5), (3 * GIB, 8.0))


def route(fleet: FleetState, now_s: float = 0.0, form: str = "maestro", **stage: object):  # type: ignore[no-untyped-def]
    return ROUTINGS[form](POLICY).route(stage_of(**stage), fleet, now_s)  # type: ignore[arg-type]


# --- the choice -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(deadline=None, max_examples=150)
def test_the_winner_has_the_highest_score_of_all_places(form: str, data: st.DataObject) -> None:
    """Brute force over every place, the formula written out once more."""
    fleet, now_s = data.draw(busy_fleets()), 5.0
    stage = stage_of(prompt=data.draw(st.integers(1, 3000)))
    homes = data.draw(st.none() | st.sampled_from(sorted(fleet.nodes) or ["x"]))
    if homes is not None:
        stage.job.homes = {"a": (f"m@{homes}", data.draw(st.integers(0, 4000)))}
    decision = ROUTINGS[form](POLICY).route(stage, fleet, now_s)

    def rank(place: Place) -> tuple[bool, bool, float, int, str]:
        score = score_by_hand(place, stage, now_s, with_run=form == "maestroctl")
        none = place.disruption_s is None
        return (place.failure is not None, none, -score, place.node.in_flight, place.name)

    places = [p for p in fleet.places(M).values() if p.is_usable and p.blocked_until_s is None]
    places = [p for p in places if p.slots]
    if not any(place.is_open for place in places):
        assert decision.place is None
        return
    best = min(places, key=rank)
    if best.is_open:
        assert decision.place is best
    else:
        assert decision.place is None
        assert decision.wait_s is not None
        assert decision.wait_s > 0


def score_by_hand(place: Place, stage: StageState, now_s: float, *, with_run: bool) -> float:
    """Eqs 5 and 6 written out once more."""
    profile = place.profile
    assert profile is not None
    prompt, cost = stage.stage.prompt_tokens.full, profile.iteration
    serves = max(1, place.slots - max(1, len(place.engines)))
    if place.in_flight >= serves:
        ends = sorted(place.ends.values())
        ready_s = max(0.02, abs(ends[place.in_flight - serves] - now_s))
    elif place.engines:
        ready_s = min(engine.ready_in_s for engine in place.engines)
    else:
        ready_s = profile.cold_start_s
    awake = any(engine.status.is_awake for engine in place.engines)
    home, seen = (stage.job.homes or {}).get("a", ("", 0))
    prefix_s = cost.cp_s * min(seen, prompt) if awake and home == place.name else 0.0
    limit = sum(engine.kv_limit_bytes for engine in place.engines)
    fit = min(1.0, (place.tokens + prompt + 100) * 1024 / limit) if awake else place.tightness
    batch = min(place.in_flight + 1, profile.max_batch)
    run_s = cost.c0_s + cost.cp_s * prompt + 40 * (cost.c0_s + cost.c1_s * batch)
    return (
        prefix_s
        + 0.05 * fit
        - 1.5 * (ready_s + place.node.rtt_s)
        - 0.7 * (place.disruption_s or 0.0)
        - (run_s if with_run else 0.0)
    )


@st.composite
def busy_fleets(draw: st.DrawFn) -> FleetState:
    """Up to nine nodes that differ in everything the score looks at."""
    fleet, seq = FleetState(1, Weights.of(POLICY)), 0
    for number in range(draw(st.integers(0, 9))):
        profile = replace(make_profile(), wake_s=draw(st.sampled_from([0.5, 2.0, 9.0])))
        snapshot = node(
            f"n{number}",
            draw(st.none() | st.sampled_from(list(EngineStatus))),
            slots=draw(st.integers(0, 3)),
            free_bytes=draw(st.integers(0, 4)) * GIB,
            curve=draw(st.sampled_from([(), CURVE])),
            ready_in_s=draw(st.sampled_from([None, 0.0, 1.0])),
            profile=profile,
        )
        fleet.apply(snapshot, draw(st.sampled_from([0.0, 0.02, 0.3])), 0.0)
        place = place_of(fleet, f"n{number}")
        for end_s in draw(st.lists(st.floats(0, 30), max_size=place.slots)):
            seq += 1
            fleet.reserve(place, seq, 100, end_s)
    return fleet


def test_beyond_the_index_the_winner_is_the_best_by_what_the_index_orders_by() -> None:
    profile = make_profile()
    wakes = {f"n{k:03}": 2.0 + (k * 37 % 100) / 10 for k in range(100)}
    fleet = fleet_of(*(node(n, ASLEEP, ready_in_s=w, profile=profile) for n, w in wakes.items()))
    decision = route(fleet)
    assert decision.place is not None
    assert wakes[decision.place.node.name] == min(wakes.values())
    assert f"{MAX_OTHERS} places" in decision.reason
    assert len(decision.candidates) == MAX_CANDIDATES


def test_waiting_two_seconds_beats_a_start_of_thirty() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None))
    fill(fleet, "n1", 2.0, 2.0, 2.0)
    decision = route(fleet)
    assert (decision.place, decision.wait_s) == (None, pytest.approx(2.0))
    assert decision.reason == "waiting for m@n1 beats what is free"


def test_a_start_of_thirty_beats_waiting_forty() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None))
    fill(fleet, "n1", 40.0, 40.0, 40.0)
    decision = route(fleet)
    assert decision.place is place_of(fleet, "n2")


def test_a_prediction_that_proved_wrong_is_waited_for_no_longer_than_it_is_late() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", ASLEEP))
    fill(fleet, "n1", 1.0, 1.0, 1.0)
    assert route(fleet, 2.0).place is None
    assert route(fleet, 5.0).place is place_of(fleet, "n2")


def test_the_back_of_a_long_queue_starts_another_engine_and_the_front_waits() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None))
    fill(fleet, "n1", 2.0, 2.0, 2.0)
    policy = ROUTINGS["maestro"](POLICY)
    assert policy.route(stage_of(), fleet, 0.0).place is None
    assert policy.route_behind(stage_of(), 2, 0.0, fleet, 0.0).place is None
    assert policy.route_behind(stage_of(), 200, 0.0, fleet, 0.0).place is place_of(fleet, "n2")


@pytest.mark.parametrize("routing", ["maestro", "maestroctl"])
def test_a_queue_that_stood_as_long_as_a_start_takes_is_worth_one(routing: str) -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None), node("n3", None))
    fill(fleet, "n1", 2.0, 2.0, 2.0)
    policy, start_s = ROUTINGS[routing](POLICY), make_profile().cold_start_s

    def place_after(waited_s: float, num_ahead: int = 2) -> Place | None:
        return policy.route_behind(stage_of(), num_ahead, waited_s, fleet, 0.0).place

    assert place_after(start_s - 1.0) is None
    assert place_after(start_s) is place_of(fleet, "n2")
    fleet.reserve(place_of(fleet, "n2"), 9, 10)
    assert place_after(10 * start_s) is None, "n2 is coming up, and takes them all"
    assert place_after(start_s, 9) is place_of(fleet, "n3"), "they would fill both"
    fleet.apply(node("n2", AWAKE, slots=1), 0.0, 0.0)
    assert place_after(start_s) is place_of(fleet, "n3")


@pytest.mark.parametrize("num_ahead", [1, 9, 200])
def test_a_stage_of_the_back_half_takes_no_slot_of_an_awake_engine(num_ahead: int) -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", slots=3))
    fill(fleet, "n1", 5.0, 5.0)
    fill(fleet, "n2", 1.0, 1.0, 1.0)
    policy = ROUTINGS["maestroctl"](POLICY)
    decision = policy.route(stage_of(), fleet, 0.0)
    assert decision.reason == "waiting for m@n2 beats what is free", "n1 has the slot beyond"
    assert policy.route_behind(stage_of(), num_ahead, 1e6, fleet, 0.0).place is None


def test_a_queue_costs_what_its_jobs_will_take() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None))
    fill(fleet, "n1", 2.0, 2.0, 2.0)
    policy = ROUTINGS["maestroctl"](POLICY)

    def place_for(total_tokens: float) -> Place | None:
        stage = stage_of()
        stage.prediction = replace(stage.prediction, total_tokens={M: total_tokens})
        return policy.route_behind(stage, 2, 0.0, fleet, 0.0).place

    assert place_for(0.0) is None, "two stages are over before n2 is up"
    assert place_for(5000.0) is place_of(fleet, "n2"), "their jobs come back"


def test_no_place_is_started_for_a_queue_where_somebody_would_have_to_give_way() -> None:
    fleet = fleet_of(node("n1", slots=3), node("n2", None, free_bytes=0, curve=CURVE))
    fill(fleet, "n1", 2.0, 2.0, 2.0)
    policy = ROUTINGS["maestroctl"](POLICY)
    assert policy.route_behind(stage_of(), 2, 1e6, fleet, 0.0).place is None


def test_a_node_that_can_only_make_room_by_ending_work_comes_last() -> None:
    fleet = fleet_of(node("n1", None, free_bytes=0), node("n2", None, free_bytes=0, curve=CURVE))
    assert route(fleet).place is place_of(fleet, "n2")
    fleet = fleet_of(node("n1", None, free_bytes=0))
    assert route(fleet).place is place_of(fleet, "n1")


def test_a_node_nobody_has_heard_of_lately_gets_nothing() -> None:
    fleet = fleet_of(node("n1"))
    assert route(fleet, FRESH_S).place is place_of(fleet, "n1")
    decision = route(fleet, FRESH_S + 0.1)
    assert decision.place is None
    assert decision.rejected_counts == {"its node has not been heard of lately": 1}


def test_the_near_one_of_two_alike_nodes() -> None:
    fleet = fleet_of(node("n1"), node("n2"), rtt_s={"n1": 0.12, "n2": 0.002})
    assert route(fleet).place is place_of(fleet, "n2")


def test_of_two_alike_awake_engines_the_fuller_one_unless_it_would_have_to_wait() -> None:
    fleet = fleet_of(node("n1", slots=4), node("n2", slots=4))
    fill(fleet, "n2", 9.0)
    assert route(fleet).place is place_of(fleet, "n2")
    fill(fleet, "n2", 9.0, 9.0)
    assert route(fleet).place is place_of(fleet, "n1")


def test_our_form_sends_long_answers_to_the_faster_device() -> None:
    slow = make_profile()
    fast = replace(slow, iteration=replace(slow.iteration, c0_s=slow.iteration.c0_s / 4))
    fleet = fleet_of(node("n1", profile=slow), node("n2", profile=fast), rtt_s={"n2": 0.1})
    assert route(fleet).place is place_of(fleet, "n1")
    assert route(fleet, form="maestroctl").place is place_of(fleet, "n2")


def test_slots_kept_for_interactive_stages_are_full_for_batch_ones() -> None:
    fleet = fleet_of(node("n1", slots=4), node("n2", None))
    place = place_of(fleet, "n1")
    place.reserved = 2
    fleet.refresh(place)
    fill(fleet, "n1", 3.0, 3.0)
    assert route(fleet, service_class=ServiceClass.BATCH).place is place
    place.num_batch = 2
    assert route(fleet).place is place
    decision = route(fleet, service_class=ServiceClass.BATCH)
    assert (decision.place, decision.wait_s) == (None, pytest.approx(3.0))


# --- monotonicity ---------------------------------------------------------------------------------

Change = Callable[[FleetState, str], None]


def closer(fleet: FleetState, name: str) -> None:
    snapshot = fleet.nodes[NodeName(name)].snapshot
    fleet.apply(snapshot, 0.0, 0.0)


def free(fleet: FleetState, name: str) -> None:
    place = place_of(fleet, name)
    for seq in list(place.ends):
        fleet.release(place, seq, 100)


@pytest.mark.parametrize("change", [closer, free])
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_winner_that_gets_better_stays_the_winner(change: Change, data: st.DataObject) -> None:
    fleet = data.draw(busy_fleets())
    weights = Weights.of(POLICY)
    need = stage_need(stage_of())
    decision = ROUTINGS["maestro"](POLICY).route(stage_of(), fleet, 5.0)
    if decision.place is None:
        return
    place = decision.place
    before = score_place(weigh_place(place, need, 5.0, with_run=False), weights)
    change(fleet, place.node.name)
    terms = weigh_place(place, need, 5.0, with_run=False)
    # Without its stages an engine that was about to wake sleeps, and may find no room to wake.
    if terms.disruption_s is not None and score_place(terms, weights) >= before:
        again = ROUTINGS["maestro"](POLICY).route(stage_of(), fleet, 5.0)
        assert again.place is place


# --- in the core ----------------------------------------------------------------------------------


def begin(core: Coordinator, *snapshots: NodeSnapshot) -> None:
    names = [snapshot.node for snapshot in snapshots]
    core.begin(make_fleet(nodes=names, policy=PolicySpec(routing="maestro")))
    for snapshot in snapshots:
        core.tell(NodeSnapshotReceived(snapshot, 0.001))


def sent(effects: Sequence[CoordinatorEffect]) -> list[str]:
    return [effect.node for effect in effects if isinstance(effect, DispatchStage)]


def test_a_stage_that_waits_for_a_full_engine_asks_again_at_its_predicted_end(
    coordinator: Coordinator,
) -> None:
    begin(coordinator, node("n1", slots=2), node("n2", None))
    for number in (1, 2):
        assert sent(coordinator.tell(arrival(make_stage(f"s{number}")))) == ["n1"]
    effects = coordinator.tell(arrival(make_stage("s3")))
    assert sent(effects) == []
    [timer] = [e for e in effects if isinstance(e, SetTimer) and e.timer_id.startswith("route/")]
    assert 0 < timer.at_s < 30
    # The answer that was to end then goes on and on: half a minute later a start is no worse.
    late_s = timer.at_s + 40.0
    coordinator.tell(NodeSnapshotReceived(node("n2", None), 0.001), timer.at_s)
    coordinator.tell(NodeSnapshotReceived(node("n1", slots=2), 0.001), late_s)
    effects = coordinator.tell(NodeSnapshotReceived(node("n2", None), 0.001), late_s)
    assert sent(effects) in (["n2"], [])
    assert [view.node for view in coordinator.core.in_flight()].count("n2") == 1


def test_a_stage_too_long_for_one_nodes_engine_goes_to_the_other_and_holds_up_nobody(
    coordinator: Coordinator,
) -> None:
    short = make_profile(max_model_len=512)
    begin(coordinator, node("n1", profile=short), node("n2", ASLEEP))
    assert sent(coordinator.tell(arrival(make_stage("s1", prompt_tokens=600)))) == ["n2"]
    assert sent(coordinator.tell(arrival(make_stage("s2", prompt_tokens=100)))) == ["n1"]


def test_a_refused_stage_goes_to_the_next_best_node_at_once(coordinator: Coordinator) -> None:
    begin(coordinator, node("n1"), node("n2"))
    [first] = sent(coordinator.tell(arrival(make_stage())))
    refusal = StageRefused(make_stage().stage_id, 1, "no memory")
    [second] = sent(coordinator.tell(refusal, 0.1))
    assert {first, second} == {"n1", "n2"}
    assert [e.record.kind for e in coordinator.records] == ["route", "refuse", "route"]


def test_a_declared_round_trip_stands_in_for_the_measured_one() -> None:
    fleet = FleetState(1, None, {ClusterName("local"): 0.25})
    fleet.apply(node("n1"), 0.001, 0.0)
    assert fleet.nodes[NodeName("n1")].rtt_s == 0.25


def test_an_awake_node_is_preferred_to_a_sleeping_one_near_by() -> None:
    fleet = fleet_of(node("n1", ASLEEP), node("n2", AWAKE), rtt_s={"n2": 0.12})
    assert route(fleet).place is place_of(fleet, "n2")
