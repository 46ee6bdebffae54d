"""The online regression: against the closed form, against running quantiles, under drift."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from maestroctl.predict import online_regression
from maestroctl.predict.calibrated import Calibrated
from maestroctl.predict.history import HistorySnapshot
from maestroctl.predict.online_regression import START, LengthTraits, OnlineRegression
from maestroctl.predict.raw_prediction import CandidateFigures
from maestroctl.predict.recalibration import MIN_TO_FIT, Observation, OnlineState, StageKey
from maestroctl.predict.running_window import RunningWindow
from maestroctl.predict.stage_input import StageInput

KEY = StageKey("w", "r", "s", "m")
STAGE = StageInput(candidates=("m",), workflow="w", role="r", step="s")


def follows_step_and_prompt(rng: random.Random, factor: float = 1.0) -> tuple[LengthTraits, int]:
    """A stage whose length grows with its prompt and halves after the first step of its job."""
    position, prompt = rng.randrange(6), rng.randrange(50, 5000)
    stage = replace(STAGE, position=position, prompt_tokens=prompt)
    middle = factor * prompt**0.7 * (1.0 if position == 0 else 0.5)
    return LengthTraits.of(stage), int(middle * rng.lognormvariate(0, 0.1))


def test_without_forgetting_and_outliers_it_is_ridge_regression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online_regression, "FORGET", 1.0)
    monkeypatch.setattr(online_regression, "HUBER", 1e9)
    rng = np.random.default_rng(0)
    rows, start = rng.normal(size=(60, 5)), rng.normal(size=5)
    targets = rows @ rng.normal(size=5) + rng.normal(size=60)
    fit = OnlineRegression(start.tolist())
    for row, target in zip(rows, targets, strict=True):
        fit.learn(row.tolist(), float(target))
    gram = rows.T @ rows + online_regression.RIDGE * np.eye(5)
    closed = np.linalg.solve(gram, rows.T @ targets + online_regression.RIDGE * start)
    assert fit.weights == pytest.approx(closed.tolist(), abs=1e-9)


def test_an_outlier_moves_it_less_than_its_size() -> None:
    moved = []
    for outlier in (2.0, 2000.0):
        fit = OnlineRegression((0.0,))
        for _ in range(50):
            fit.learn((1.0,), 0.0)
        fit.learn((1.0,), outlier)
        moved.append(fit.weights[0])
    assert moved[1] < 3 * moved[0]


def test_a_row_never_seen_to_vary_does_not_let_it_grow_without_end() -> None:
    fit = OnlineRegression((0.0, 0.0))
    for _ in range(20_000):
        fit.learn((1.0, 0.0), 1.0)
    fit.learn((1.0, 1.0), 1.5)
    assert all(math.isfinite(weight) and abs(weight) < 10 for weight in fit.weights)


def test_it_survives_json_to_the_bit() -> None:
    rng = random.Random(3)
    fit = OnlineRegression(START)
    for _ in range(80):
        fit.learn([rng.gauss(0, 1) for _ in START], rng.gauss(0, 1))
    again = OnlineRegression.from_json(json.loads(json.dumps(fit.to_json())))
    row = [rng.gauss(0, 1) for _ in START]
    fit.learn(row, 1.0)
    again.learn(row, 1.0)
    assert again.to_json() == fit.to_json()


def test_what_is_not_known_is_the_anchor() -> None:
    row = LengthTraits.of(STAGE).row(5.0, 5.0, (None, None))
    assert len(row) == len(START)
    assert row[1:9] == (0.0,) * 8
    assert all(math.isfinite(value) for value in row)


def test_a_refit_that_does_not_speak_counts_as_the_model() -> None:
    spoken = LengthTraits().row(5.0, 5.0, (6.0, None))
    assert spoken[1] == spoken[2] == 1.0


def test_it_beats_running_quantiles_where_length_depends_on_step_and_prompt() -> None:
    state, rng, window = OnlineState(), random.Random(4), RunningWindow()
    ours, theirs = 0.0, 0.0
    for number in range(400):
        traits, length = follows_step_and_prompt(rng)
        told = state.calibrate(KEY, {}, traits)
        if number >= 100:
            ours += abs(told.q50 - length)
            theirs += abs(math.expm1(window.quantile(0.5)) - length)
        state.observe(KEY, {}, told, Observation(length))
        window.add(math.log1p(length))
    assert ours < 0.4 * theirs


def test_a_new_model_is_foretold_from_what_the_role_did_under_others() -> None:
    state, rng = OnlineState(), random.Random(5)
    for _ in range(200):
        traits, length = follows_step_and_prompt(rng)
        state.observe(KEY, {}, state.calibrate(KEY, {}, traits), Observation(length))
    stranger, wrong = replace(KEY, model="new"), {"model": CandidateFigures(5000, 9000, 1)}
    errors = []
    for _ in range(30):
        traits, length = follows_step_and_prompt(rng)
        told = state.calibrate(stranger, wrong, traits)
        errors.append(abs(math.log((told.q50 + 1) / (length + 1))))
        state.observe(stranger, wrong, told, Observation(length))
    assert float(np.median(errors[3:])) < 0.3


@pytest.mark.parametrize("seed", range(3))
def test_coverage_holds_while_what_length_depends_on_drifts(seed: int) -> None:
    state, rng = OnlineState(), random.Random(seed)
    held = 0
    for number in range(1600):
        traits, length = follows_step_and_prompt(rng, factor=1 + number / 400)
        told = state.calibrate(KEY, {}, traits)
        held += number >= 100 and length <= told.q90
        state.observe(KEY, {}, told, Observation(length))
    assert 0.87 <= held / 1500 <= 0.93


def test_remaining_totals_follow_the_traits_too() -> None:
    state, rng = OnlineState(), random.Random(6)

    def ask() -> tuple[Calibrated, int]:
        traits, length = follows_step_and_prompt(rng)
        return state.calibrate(KEY, {}, traits), 3 * length

    for _ in range(300):
        told, remaining = ask()
        state.observe(KEY, {}, told, Observation(remaining // 3, remaining_tokens=remaining))
    asked = [ask() for _ in range(60)]
    errors = [abs(math.log((told.total + 1) / (left + 1))) for told, left in asked]
    assert float(np.median(errors)) < 0.3


def test_a_name_that_comes_seldom_gets_no_regression() -> None:
    state = OnlineState()
    for _ in range(MIN_TO_FIT - 1):
        state.observe(KEY, {}, state.calibrate(KEY, {}), Observation(9))
    assert all(group["fits"] == [None, None] for group in state.to_json()["groups"].values())


def test_a_cut_stage_does_not_teach_the_regression() -> None:
    state = OnlineState()
    for _ in range(40):
        state.observe(KEY, {}, state.calibrate(KEY, {}), Observation(100))
    before = [group["fits"] for group in state.to_json()["groups"].values()]
    state.observe(KEY, {}, state.calibrate(KEY, {}), Observation(1, censored=True))
    assert [group["fits"] for group in state.to_json()["groups"].values()] == before


def test_traits_are_of_what_the_job_did_so_far() -> None:
    past = HistorySnapshot(num_stages=2, role_last_1=4.0, prev_prompt_tokens=100.0, prev_tool=1.0)
    row = LengthTraits.of(replace(STAGE, prompt_tokens=100, history=past)).row(3.0, 3.0, (None,))
    assert row[2] == 1.0  # one log more than usual the last time
    assert all(math.isfinite(value) for value in row)
