"""`maestroctl`: a more confident model is chosen where the confidence is worth its time."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.service_time import estimate_decode_s
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.priced_choice import Offer, PricedChoice, choose_offer
from maestroctl.testing.coordinator_builders import (
    limited,
    make_engine,
    make_profile,
    make_snapshot,
    make_stage,
)

OFFERS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]) | st.floats(0, 1),
        st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 100),
        st.sampled_from([0.0, 1.0, 2.0]) | st.floats(0, 100),
    ),
    min_size=1,
    max_size=6,
).map(lambda drawn: [offer(f"m{n}", *figures) for n, figures in enumerate(drawn)])
SLACKS = st.sampled_from([0.0, 0.5, math.inf]) | st.floats(0, 10)
MARGINS = st.sampled_from([0.0, 0.05, math.inf]) | st.floats(0, 1)
TYPICAL = st.floats(0.01, 100)


def offer(name: str, confidence: float, cost_s: float, price_s: float | None = None) -> Offer:
    return Offer(
        ModelName(name), confidence, 0.0, 0.0, cost_s, cost_s if price_s is None else price_s
    )


@given(offers=OFFERS, slack=SLACKS, margin=MARGINS, typical_s=TYPICAL)
@settings(deadline=None)
def test_the_best_is_what_trying_every_model_finds(
    offers: list[Offer], slack: float, margin: float, typical_s: float
) -> None:
    best, fast = choose_offer(offers, slack, margin, typical_s)
    assert fast.cost_s == min(o.cost_s for o in offers)
    assert best in offers

    def worth(o: Offer) -> float:
        gain, extra_s = o.confidence - fast.confidence, o.price_s - fast.price_s
        if extra_s <= 0 or math.isinf(slack):
            return gain
        return gain - 0.1 * extra_s / (slack * typical_s) if slack else -math.inf

    allowed = [o for o in offers if o is fast or o.confidence >= fast.confidence + margin]
    assert best in allowed
    assert worth(best) == pytest.approx(max(worth(o) for o in allowed), abs=1e-9)


@given(offers=OFFERS, margin=MARGINS, typical_s=TYPICAL)
@settings(deadline=None)
def test_without_slack_it_is_the_fastest(
    offers: list[Offer], margin: float, typical_s: float
) -> None:
    best, fast = choose_offer(offers, 0.0, margin, typical_s)
    assert fast.cost_s == min(o.cost_s for o in offers)
    assert best is fast or best.price_s <= fast.price_s, "or better at no higher price"


@given(offers=OFFERS, typical_s=TYPICAL)
@settings(deadline=None)
def test_with_slack_without_limit_it_is_the_most_confident(
    offers: list[Offer], typical_s: float
) -> None:
    best, _ = choose_offer(offers, math.inf, 0.0, typical_s)
    assert best.confidence == max(o.confidence for o in offers)


@given(offers=OFFERS, slack=SLACKS, typical_s=TYPICAL)
@settings(deadline=None)
def test_with_a_margin_without_limit_it_never_upgrades(
    offers: list[Offer], slack: float, typical_s: float
) -> None:
    best, fast = choose_offer(offers, slack, math.inf, typical_s)
    assert best is fast


@given(offers=OFFERS, margin=MARGINS, slacks=st.tuples(SLACKS, SLACKS), typical_s=TYPICAL)
@settings(deadline=None)
def test_more_slack_never_lowers_the_confidence(
    offers: list[Offer], margin: float, slacks: tuple[float, float], typical_s: float
) -> None:
    low, high = sorted(slacks)
    tight, _ = choose_offer(offers, low, margin, typical_s)
    loose, _ = choose_offer(offers, high, margin, typical_s)
    assert loose.confidence >= tight.confidence - 1e-9


def test_ten_points_of_confidence_are_worth_tau_typical_services() -> None:
    fast = offer("fast", 0.4, 10.0)
    for cost_s, chosen in ((10.0 + 2 * 8.0 - 0.1, "good"), (10.0 + 2 * 8.0 + 0.1, "fast")):
        good = offer("good", 0.6, cost_s)
        best, _ = choose_offer([fast, good], 0.5, 0.05, typical_s=16.0)
        assert best.model == chosen


# --- the cost ----------------------------------------------------------------------------------


def a_stage(tokens: float, name: str = "s1") -> StageState:
    stage = make_stage(name, models=["small", "large"])
    job = JobState(JobId(f"j-{name}"), "", ServiceClass.BATCH, 0.0, None)
    totals = dict.fromkeys(stage.candidates, tokens)
    known = dict.fromkeys(stage.candidates, 0.5)
    return StageState(stage, Prediction(1.0, 2.0, 0.0, totals, known), job, 0.0)


def a_fleet(slots: int = 2, ready_in_s: float = 0.0) -> FleetState:
    fleet = FleetState(1)
    for node, model in (("n1", "small"), ("n2", "large")):
        engine = make_engine(model, slots, node=node, ready_in_s=ready_in_s)
        fleet.apply(make_snapshot(node, [engine], [make_profile(model)]), 0.25, 1.0)
    return fleet


def weigh(choice: PricedChoice, stage: StageState, fleet: FleetState) -> dict[str, float]:
    decision = choice.pick(stage, stage.stage.candidates, fleet)
    return dict(decision.candidates[0].terms)


def test_on_an_idle_fleet_a_job_costs_its_own_work_and_the_way_there() -> None:
    profile = make_profile("small")
    stage = a_stage(100.0)
    terms = weigh(PricedChoice(limited()), stage, a_fleet(ready_in_s=3.0))
    own_s = 100 * estimate_decode_s(profile, 1) + prompts_s(stage, 100)
    assert terms["price_s"] == pytest.approx(3.0 + 0.25 + own_s)
    assert terms["cost_s"] == terms["price_s"], "nobody waits because of it"


def prompts_s(stage: StageState, num_stages: int) -> float:
    """A stage of these tests is predicted to give one token, so there are as many as tokens."""
    prompt = stage.stage.prompt_tokens.full
    return make_profile("small").iteration.cp_s * prompt * num_stages


def queue_up(choice: PricedChoice, number: int) -> None:
    for n in range(number):
        busy = a_stage(50.0, f"busy{n}")
        busy.models = (ModelName("small"),)
        choice.on_models_set(busy)


def test_behind_waiting_stages_a_job_waits_and_makes_others_wait() -> None:
    choice, fleet, stage = PricedChoice(limited()), a_fleet(slots=2), a_stage(100.0)
    queue_up(choice, 6)
    terms = weigh(choice, stage, fleet)
    token_s = estimate_decode_s(make_profile("small"), 4)
    wait_s = 300 * token_s / 2 * 4 / 6
    own_s = 100 * token_s + prompts_s(stage, 100)
    assert terms["in_flight_tokens"] == 300.0
    assert terms["cost_s"] == pytest.approx(0.25 + wait_s + own_s * (1 + 4 / 2))


def test_a_queue_counts_a_tenth_in_the_price() -> None:
    choice, fleet, stage = PricedChoice(limited()), a_fleet(slots=2), a_stage(100.0)
    queue_up(choice, 6)
    terms = weigh(choice, stage, fleet)
    own_s = 100 * estimate_decode_s(make_profile("small"), 4) + prompts_s(stage, 100)
    assert terms["price_s"] == pytest.approx(0.25 + own_s * (1 + 4 / 2 / 10))


def test_where_the_order_stands_in_for_confidences_all_of_the_queue_counts() -> None:
    choice, fleet, stage = PricedChoice(limited()), a_fleet(slots=2), a_stage(100.0)
    stage.prediction = replace(stage.prediction, confidence={})
    queue_up(choice, 8)
    assert choice.pick(stage, stage.stage.candidates, fleet).models == ("large",)
    terms = weigh(choice, stage, fleet)
    assert terms["price_s"] == terms["cost_s"]


def test_the_longer_the_queue_the_dearer_the_model() -> None:
    choice, fleet = PricedChoice(limited()), a_fleet(slots=2)
    prices = []
    for _ in range(4):
        prices.append(weigh(choice, a_stage(100.0), fleet)["price_s"])
        queue_up(choice, 10 * len(prices))
    assert prices == sorted(prices)
    assert prices[-1] > 2 * prices[0], "in the end load sheds itself"


def test_the_typical_service_follows_what_is_seen_of_late() -> None:
    choice, fleet = PricedChoice(limited()), a_fleet()
    weigh(choice, a_stage(100.0), fleet)
    first = choice._typical_s
    for _ in range(400):
        weigh(choice, a_stage(1000.0), fleet)
    assert first is not None
    assert choice._typical_s == pytest.approx(10 * first, rel=0.06)
