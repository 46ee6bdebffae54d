"""Online learning: coverage, blending, censoring, durability."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from maestroctl.errors import SchemaMismatch
from maestroctl.predict import group_table
from maestroctl.predict.annotate import annotate, learn, learn_total
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.recalibration import Observation, OnlineState, StageKey
from maestroctl.predict.stage_input import StageInput

KEY = StageKey("w", "r", "s", "m")
STAGE = StageInput(candidates=("m",), workflow="w", role="r", step="s", tools_available=1)


def says(q50: float, q90: float, total: float = 500.0) -> dict[str, CandidateFigures]:
    return {"model": CandidateFigures(q50, q90, total)}


def run(state: OnlineState, lengths: list[int], experts: dict[str, CandidateFigures]) -> float:
    """Feed a stream; returns the share of stages within the booked quantile."""
    held = 0
    for length in lengths:
        told = state.calibrate(KEY, experts)
        held += length <= told.q90
        state.observe(KEY, experts, told, Observation(length))
    return held / len(lengths)


def lognormal(rng: random.Random, middle: float, count: int) -> list[int]:
    return [int(rng.lognormvariate(0, 0.8) * middle) for _ in range(count)]


def test_with_nothing_known_the_prior_answers() -> None:
    told = OnlineState().calibrate(KEY, {})
    assert told.source == "prior"
    assert 0 < told.q50 <= told.q90


def test_without_a_model_the_profile_answers_then_the_role_then_the_model() -> None:
    state = OnlineState()
    run(state, [100] * 10, {})
    assert state.calibrate(KEY, {}).source == "profile"
    assert state.calibrate(KEY, {}).q50 == pytest.approx(100)
    assert state.calibrate(replace(KEY, step="new"), {}).q50 == pytest.approx(100)
    assert state.calibrate(replace(KEY, workflow="new"), {}).q50 == pytest.approx(100)


def test_a_model_that_is_wrong_here_loses_its_say() -> None:
    state, rng = OnlineState(), random.Random(1)
    wrong = says(2000, 4000)
    run(state, lognormal(rng, 50, 60), wrong)
    assert 25 < state.calibrate(KEY, wrong).q50 < 100


def test_a_model_that_is_right_keeps_its_say_over_the_profile() -> None:
    state, rng = OnlineState(), random.Random(2)
    for _ in range(120):
        middle = rng.choice([20.0, 400.0])
        experts = says(middle, middle * 1.5)
        told = state.calibrate(KEY, experts)
        state.observe(KEY, experts, told, Observation(int(middle * rng.uniform(0.9, 1.1))))
    assert state.calibrate(KEY, says(400, 600)).q50 == pytest.approx(400, rel=0.2)
    assert state.calibrate(KEY, says(20, 30)).q50 == pytest.approx(20, rel=0.35)


@pytest.mark.parametrize("seed", range(4))
def test_coverage_holds_under_a_drifting_stream(seed: int) -> None:
    state, rng = OnlineState(), random.Random(seed)
    experts = says(50, 120)
    run(state, lognormal(rng, 50, 60), experts)
    lengths = [int(rng.lognormvariate(0, 0.8) * (50 + k)) for k in range(1500)]
    assert 0.87 <= run(state, lengths, experts) <= 0.93


def test_a_jump_is_followed_within_two_hundred_stages() -> None:
    state, rng = OnlineState(), random.Random(5)
    experts = says(50, 120)
    run(state, lognormal(rng, 50, 300), experts)
    run(state, lognormal(rng, 800, 200), experts)
    assert 0.85 <= run(state, lognormal(rng, 800, 400), experts) <= 0.95


def test_a_censored_stage_is_not_taken_as_short() -> None:
    state = OnlineState()
    run(state, [100] * 30, {})
    before = state.calibrate(KEY, {}).q50
    for _ in range(30):
        state.observe(KEY, {}, state.calibrate(KEY, {}), Observation(1, censored=True))
    assert state.calibrate(KEY, {}).q50 == pytest.approx(before)


def test_passing_the_booked_quantile_is_a_miss_even_when_censored() -> None:
    state = OnlineState()
    run(state, [100] * 30, {})
    told = state.calibrate(KEY, {})
    rate = state.drift()["w/r"]["miss_rate"]
    state.observe(KEY, {}, told, Observation(int(told.q90) + 50, censored=True))
    assert state.drift()["w/r"]["miss_rate"] > rate


def test_drift_shows_when_the_errors_grow() -> None:
    state, rng = OnlineState(), random.Random(6)
    run(state, lognormal(rng, 50, 300), says(50, 120))
    calm = state.drift()["w/r"]["error_ratio"]
    run(state, lognormal(rng, 5000, 10), says(50, 120))
    assert state.drift()["w/r"]["error_ratio"] > 1.5 * calm


def test_the_state_survives_json_to_the_bit() -> None:
    state, rng = OnlineState(), random.Random(7)
    run(state, lognormal(rng, 50, 250), says(60, 100))
    state.observe_total(KEY, says(60, 100), state.calibrate(KEY, says(60, 100)), 900)
    again = OnlineState.from_json(json.loads(json.dumps(state.to_json())))
    assert again.calibrate(KEY, says(33, 44)) == state.calibrate(KEY, says(33, 44))
    assert again.to_json() == state.to_json()


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(SchemaMismatch):
        OnlineState.from_json({"version": 0, "observed": 0, "groups": {}})


def test_reset_forgets_one_workflow_or_everything() -> None:
    state = OnlineState()
    run(state, [10] * 20, {})
    other = replace(KEY, workflow="other", model="n")
    state.observe(other, {}, state.calibrate(other, {}), Observation(7))
    state.reset("w")
    assert "w/r" not in state.drift()
    assert "other/r" in state.drift()
    state.reset()
    assert state.drift() == {}


def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_table, "MAX_GROUPS", 50)
    state = OnlineState()
    for number in range(300):
        key = replace(KEY, workflow=f"w{number}")
        state.observe(key, {}, state.calibrate(key, {}), Observation(9))
    assert len(state.to_json()["groups"]) <= 50


def test_a_swapped_expert_starts_afresh() -> None:
    state = OnlineState()
    experts = {**says(50, 80), "local": CandidateFigures(3000, 5000, 1.0)}
    run(state, [50] * 40, experts)
    state.take_changes(100)
    state.keep_experts(("model", "profile"))
    groups = state.to_json()["groups"].values()
    assert all("local" not in group["experts"] for group in groups)
    assert any("model" in group["experts"] for group in groups)
    assert state.take_changes(100), "what was dropped is written down"


def test_annotations_collapse_over_candidates_safely() -> None:
    stage = replace(STAGE, candidates=("a", "b", "c"), max_tokens=1000)
    figures = {
        "a": CandidateFigures(10, 20, 100),
        "b": CandidateFigures(50, 5000, 900),
        "c": CandidateFigures(30, 60, 300),
    }
    raw = RawPrediction(0.4, figures, {"a": 0.9})
    prediction = annotate(stage, {"model": raw}, OnlineState()).prediction
    assert prediction.output_q50 == pytest.approx(30)
    assert prediction.output_q90 == pytest.approx(1000)
    assert prediction.p_tool == 0.4
    assert dict(prediction.confidence) == {"a": 0.9}, "what the router does not know is left out"
    assert set(prediction.total_tokens) == {"a", "b", "c"}
    assert prediction.source == "model"


@pytest.mark.parametrize(
    ("change", "p_tool"),
    [
        ({"tools_available": 0}, 0.0),
        ({"tool_choice": "none"}, 0.0),
        ({"tool_choice": "required"}, 1.0),
    ],
)
def test_the_fallback_knows_certain_tools(change: dict[str, object], p_tool: float) -> None:
    assert annotate(replace(STAGE, **change), {}, OnlineState()).prediction.p_tool == p_tool  # type: ignore[arg-type]


def test_outcomes_come_back_through_the_annotation() -> None:
    state = OnlineState()
    for _ in range(20):
        annotation = annotate(STAGE, {}, state)
        learn(annotation, "m", Observation(77, remaining_tokens=300), state)
        learn_total(annotation, "m", 300, state)
    prediction = annotate(STAGE, {}, state).prediction
    assert prediction.output_q50 == pytest.approx(77)
    assert prediction.total_tokens["m"] == pytest.approx(300)  # type: ignore[index]


def test_a_model_outside_the_candidates_teaches_nothing() -> None:
    state = OnlineState()
    learn(annotate(STAGE, {}, state), "stranger", Observation(5), state)
    assert state.observed == 0
