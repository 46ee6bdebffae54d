"""Measured prediction errors: what is told keeps the shape that was fitted."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import median

import pytest

from maestroctl.domain.ids import ModelName
from maestroctl.sim.jobs import Call
from maestroctl.sim.measured_error import load_measured
from maestroctl.sim.prediction import PredictionError, Predictor


def test_a_line_is_followed_and_quantiles_scale_with_it() -> None:
    measured = load_measured()
    q50, q90 = measured.length("nobody measured this", "r", 100, 0.0)
    assert 1.0 <= q50 <= q90
    assert measured.length("tau_retail", "r", 100, 2.0)[0] > q50 * 0.5


def test_a_predictor_that_knows_only_the_kind_overrates_small_jobs_and_underrates_large() -> None:
    measured = load_measured()
    rng = random.Random(1)
    draws = [rng.gauss(0.0, 1.0) for _ in range(500)]
    small, large = (
        median(measured.remaining("tau_retail", 0, tokens, z) / tokens for z in draws)
        for tokens in (100, 10_000)
    )
    assert small > 1.0 > large


def test_errors_of_one_job_go_along_with_one_another_and_stay_standard_normal() -> None:
    measured = load_measured()
    rng = random.Random(2)
    row = measured.correlated("magentic_one", [rng.gauss(0.0, 1.0) for _ in range(20_000)])
    assert sum(z * z for z in row) / len(row) == pytest.approx(1.0, abs=0.15)
    products = sum(a * b for a, b in pairwise(row)) / len(row)
    assert products > 0.5


def test_draws_beyond_what_was_seen_are_held_to_it() -> None:
    measured = load_measured()
    told = [measured.length("", "", 100, z)[0] for z in (-99.0, -4.0, 4.0, 99.0)]
    assert told[0] == told[1] < told[2] == told[3]
    assert all(math.isfinite(value) for value in told)


@pytest.mark.parametrize(("tools", "told"), [(0, 0.0), (3, 0.5)])
def test_whether_a_tool_is_called_is_not_given_away(tools: int, told: float) -> None:
    model = ModelName("m")
    predictor = Predictor(PredictionError("measured"))
    for called in (False, bool(tools)):
        call = Call("r", (model,), 10, 100, tools_available=tools, tool_called=called)
        assert predictor.predict(call, {model: 100.0}).p_tool == told
