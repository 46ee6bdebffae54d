"""Eqs 5 and 6 by hand: each term of a score, and what makes it better or worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.domain.units import GIB
from maestroctl.estimate.service_time import estimate_prefill_s
from maestroctl.scheduler.routing.degradation_cost import estimate_degradation_s
from maestroctl.scheduler.routing.placement_score import (
    EPSILON_S,
    LEAST_WAIT_S,
    StageNeed,
    Terms,
    Weights,
    estimate_queue_s,
    score_place,
    weigh_place,
)
from maestroctl.testing.coordinator_builders import make_profile
from tests.unit.scheduler.routing.support import ASLEEP, AWAKE, fill, fleet_of, node, place_of

NEED = StageNeed(prompt_tokens=50, output_tokens=40.0, booked_tokens=150)
CURVE = ((1 * GIB, 0.5), (4 * GIB, 3.0), (16 * GIB, 40.0))


@pytest.mark.parametrize(
    ("need", "headroom", "cost"),
    [
        pytest.param(4 * GIB, 4 * GIB, 0.0, id="it fits the headroom"),
        pytest.param(5 * GIB, 4 * GIB, 0.5, id="the first point that frees enough"),
        pytest.param(5 * GIB + 1, 4 * GIB, 3.0, id="a byte more costs the next point"),
        pytest.param(4 * GIB, -2 * GIB, 40.0, id="an overbooked node owes the rest as well"),
        pytest.param(21 * GIB, 4 * GIB, None, id="no point frees so much"),
        pytest.param(0, -2 * GIB, 0.0, id="nothing is needed"),
    ],
)
def test_the_cost_of_making_room_is_read_from_the_curve(
    need: int, headroom: int, cost: float | None
) -> None:
    assert estimate_degradation_s(need, headroom, CURVE) == cost


@given(
    need=st.integers(0, 40 * GIB), headroom=st.integers(-GIB, 40 * GIB), more=st.integers(0, GIB)
)
def test_more_memory_never_makes_a_node_dearer(need: int, headroom: int, more: int) -> None:
    before = estimate_degradation_s(need, headroom, CURVE)
    after = estimate_degradation_s(need, headroom + more, CURVE)
    assert before is None or (after is not None and after <= before)


@pytest.mark.parametrize(
    ("free_s", "now_s", "queue_s"),
    [
        pytest.param(None, 7.0, 0.0, id="a slot is free"),
        pytest.param(9.0, 7.0, 2.0, id="until the predicted end"),
        pytest.param(4.0, 7.0, 3.0, id="late by x takes x more"),
        pytest.param(7.0, 7.0, LEAST_WAIT_S, id="any moment is not at once"),
    ],
)
def test_time_until_a_slot_frees(free_s: float | None, now_s: float, queue_s: float) -> None:
    assert estimate_queue_s(free_s, now_s) == queue_s


def test_a_score_is_the_sum_of_its_terms_in_seconds() -> None:
    terms = Terms(2.0, 3.0, 0.5, 7.0, 0.25, 0.4, 1.5)
    score = score_place(terms, Weights(readiness=2.0, degradation=0.1))
    assert score == pytest.approx(0.25 + EPSILON_S * 0.4 - 2.0 * 5.5 - 0.1 * 7.0 - 1.5)


def test_an_idle_awake_engine_costs_its_round_trip_alone() -> None:
    fleet = fleet_of(node("n1"), rtt_s={"n1": 0.06})
    terms = weigh_place(place_of(fleet, "n1"), NEED, 0.0, with_run=False)
    assert terms[:5] == (0.0, 0.0, 0.06, 0.0, 0.0)
    profile = make_profile()
    assert terms.fit == pytest.approx(150 * profile.kv_bytes_per_token / GIB)


def test_a_sleeping_engine_costs_its_wake_and_a_stopped_one_its_start() -> None:
    fleet = fleet_of(node("n1", ASLEEP), node("n2", None))
    profile = make_profile()
    for name, seconds in (("n1", profile.wake_s), ("n2", profile.cold_start_s)):
        terms = weigh_place(place_of(fleet, name), NEED, 0.0, with_run=False)
        assert (terms.queue_s, terms.activation_s) == (0.0, seconds)


def test_at_a_busy_place_the_wait_takes_the_place_of_the_activation() -> None:
    fleet = fleet_of(node("n1", ASLEEP, slots=3))
    fill(fleet, "n1", 9.0, 6.0)
    terms = weigh_place(place_of(fleet, "n1"), NEED, 2.0, with_run=False)
    assert (terms.queue_s, terms.activation_s) == (4.0, 0.0)


def test_making_room_costs_what_the_curve_says_unless_the_memory_is_free() -> None:
    fleet = fleet_of(
        node("n1", None, free_bytes=8 * GIB, curve=CURVE),
        node("n2", None, free_bytes=GIB // 2, curve=CURVE),
        node("n3", None, free_bytes=GIB // 2),
    )
    costs = [place_of(fleet, name).disruption_s for name in ("n1", "n2", "n3")]
    assert costs == [0.0, 0.5, None]


def test_the_second_stage_of_a_model_that_is_coming_up_disrupts_nobody() -> None:
    fleet = fleet_of(node("n1", None, free_bytes=GIB // 2, curve=CURVE))
    assert place_of(fleet, "n1").disruption_s == 0.5
    fill(fleet, "n1", 40.0)
    assert place_of(fleet, "n1").disruption_s == 0.0


def test_memory_that_a_first_stage_will_take_is_free_no_more() -> None:
    other = make_profile("other")
    snapshot = node("n1", None, free_bytes=2 * GIB, curve=CURVE)
    fleet = fleet_of(replace(snapshot, profiles=(*snapshot.profiles, other)))
    assert place_of(fleet, "n1").disruption_s == 0.0
    fleet.reserve(fleet.places(other.model)[snapshot.node], 1, 100)
    assert place_of(fleet, "n1").disruption_s == 0.5
    fleet.release(fleet.places(other.model)[snapshot.node], 1, 100)
    assert place_of(fleet, "n1").disruption_s == 0.0


def test_the_prefix_saving_is_the_prefill_that_home_spares() -> None:
    fleet = fleet_of(node("n1"), node("n2"))
    need = NEED._replace(prompt_tokens=900, home="m@n1", cached_tokens=800)
    profile = make_profile()
    saved = estimate_prefill_s(profile, 900) - estimate_prefill_s(profile, 100)
    found = [
        weigh_place(place_of(fleet, name), need, 0.0, with_run=False).prefix_s
        for name in ("n1", "n2")
    ]
    assert found == [pytest.approx(saved), 0.0]


def test_an_engine_that_fell_asleep_has_no_prefixes() -> None:
    fleet = fleet_of(node("n1", ASLEEP))
    need = NEED._replace(home="m@n1", cached_tokens=40)
    assert weigh_place(place_of(fleet, "n1"), need, 0.0, with_run=False).prefix_s == 0.0


def test_our_form_takes_the_execution_off_at_the_batch_it_would_join() -> None:
    fleet = fleet_of(node("n1", AWAKE, slots=4))
    fill(fleet, "n1", 9.0)
    terms = weigh_place(place_of(fleet, "n1"), NEED, 0.0, with_run=True)
    cost = make_profile().iteration
    assert terms.run_s == pytest.approx(
        cost.c0_s + 50 * cost.cp_s + 40 * (cost.c0_s + 2 * cost.c1_s)
    )
