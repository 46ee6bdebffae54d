"""The selection of Chimera's Algorithm 1: its limits, and brute force beside it."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import ModelName
from maestroctl.domain.prediction import Prediction
from maestroctl.estimate.service_time import estimate_decode_s
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.load_balancer import (
    Option,
    choose_option,
    confidences,
    job_tokens,
    token_rate_s,
)
from maestroctl.testing.coordinator_builders import make_engine, make_profile, make_snapshot


def option(name: str, confidence: float, latency_s: float) -> Option:
    return Option(ModelName(name), confidence, 0.0, 0.0, 0.0, latency_s)


QUALITIES = st.sampled_from([0.0, 0.2, 0.25, 0.5, 0.9, 1.0]) | st.floats(0, 1)
LATENCIES = st.sampled_from([0.0, 1.0, 1.5, 2.0, 4.0]) | st.floats(0, 100)
OPTIONS = st.lists(st.tuples(QUALITIES, LATENCIES), min_size=1, max_size=6).map(
    lambda pairs: [option(f"m{n}", q, latency) for n, (q, latency) in enumerate(pairs)]
)
SLACKS = st.sampled_from([0.0, 0.5, 1.0, math.inf]) | st.floats(0, 10)
MARGINS = st.sampled_from([0.0, 0.05, 0.25, math.inf]) | st.floats(0, 1)


@given(options=OPTIONS, slack=SLACKS, margin=MARGINS)
@settings(deadline=None)
def test_the_best_is_what_trying_every_model_finds(
    options: list[Option], slack: float, margin: float
) -> None:
    best, fast = choose_option(options, slack, margin)
    least = min(o.latency_s for o in options)
    assert fast.latency_s == least
    assert fast.confidence == max(o.confidence for o in options if o.latency_s == least)
    limit = math.inf if math.isinf(slack) else (1 + slack) * least
    upgrades = [
        o for o in options if o.latency_s <= limit and o.confidence >= fast.confidence + margin
    ]
    if upgrades:
        assert best.confidence == max(o.confidence for o in upgrades)
        equal = [o for o in upgrades if o.confidence == best.confidence]
        assert best.latency_s == min(o.latency_s for o in equal)
    else:
        assert best is fast


@given(options=OPTIONS, margin=MARGINS)
@settings(deadline=None)
def test_without_slack_it_is_the_fastest(options: list[Option], margin: float) -> None:
    best, fast = choose_option(options, 0.0, margin)
    assert best.latency_s == fast.latency_s


@given(options=OPTIONS)
@settings(deadline=None)
def test_with_slack_without_limit_it_is_the_most_confident(options: list[Option]) -> None:
    best, _ = choose_option(options, math.inf, 0.0)
    assert best.confidence == max(o.confidence for o in options)


@given(options=OPTIONS, slack=SLACKS)
@settings(deadline=None)
def test_with_a_margin_without_limit_it_never_upgrades(options: list[Option], slack: float) -> None:
    best, fast = choose_option(options, slack, math.inf)
    assert best is fast


@given(options=OPTIONS, margin=MARGINS, slacks=st.tuples(st.floats(0, 5), st.floats(0, 5)))
@settings(deadline=None)
def test_more_slack_never_lowers_the_confidence(
    options: list[Option], margin: float, slacks: tuple[float, float]
) -> None:
    low, high = sorted(slacks)
    tight, _ = choose_option(options, low, margin)
    loose, _ = choose_option(options, high, margin)
    assert loose.confidence >= tight.confidence


@given(options=OPTIONS, slack=SLACKS, margin=MARGINS, more_s=st.floats(0, 50))
@settings(deadline=None)
def test_a_model_that_gets_slower_is_not_chosen_because_of_it(
    options: list[Option], slack: float, margin: float, more_s: float
) -> None:
    """Load on a model that was not chosen never makes it the choice: overload sheds itself."""
    best, fast = choose_option(options, slack, margin)
    for index, other in enumerate(options):
        if other is best or other is fast:
            continue
        slower = list(options)
        slower[index] = other._replace(latency_s=other.latency_s + more_s)
        assert choose_option(slower, slack, margin)[0] is best


def test_tokens_go_at_the_rate_of_all_live_engines_when_full() -> None:
    fleet = FleetState(1)
    profile = make_profile("m", max_batch=4)
    for node, count in (("n1", 1), ("n2", 2)):
        engines = [make_engine("m", 5, node=node)] * count
        fleet.apply(make_snapshot(node, engines, [profile]), 0.0, 1.0)
    places = list(fleet.places(ModelName("m")).values())
    assert token_rate_s(places) == pytest.approx(estimate_decode_s(profile, 4) / 12)


def test_a_model_that_is_not_started_counts_as_one_engine() -> None:
    fleet = FleetState(1)
    profile = make_profile("m", max_batch=4)
    fleet.apply(make_snapshot("n1", [], [profile]), 0.0, 1.0)
    places = list(fleet.places(ModelName("m")).values())
    assert token_rate_s(places) == pytest.approx(estimate_decode_s(profile, 4) / 4)


NAMES = [ModelName(name) for name in "abcd"]


def test_without_any_confidence_the_users_order_stands_in_for_it() -> None:
    assert confidences(NAMES, Prediction(1, 1)) == [1.0, 0.75, 0.5, 0.25]


def test_a_model_of_which_nothing_is_known_gets_the_lowest_confidence() -> None:
    prediction = Prediction(1, 1, confidence={NAMES[1]: 0.4, NAMES[3]: 0.7})
    assert confidences(NAMES, prediction) == [0.4, 0.4, 0.4, 0.7]


def test_a_job_has_at_least_the_tokens_of_its_stage() -> None:
    prediction = Prediction(30, 60, total_tokens={NAMES[0]: 500.0, NAMES[1]: 10.0})
    assert [job_tokens(name, prediction) for name in NAMES[:3]] == [500.0, 30, 30]
