"""Properties of the predictors' plain parts."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.online_regression import LengthTraits
from maestroctl.predict.raw_prediction import CandidateFigures
from maestroctl.predict.recalibration import Observation, OnlineState, StageKey
from maestroctl.predict.running_window import RunningWindow
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.text_features import NAMES, surface_features

text = st.text(st.characters(), max_size=60)
tokens = st.integers(0, 10**6)


@given(st.lists(st.floats(-5, 20), min_size=1, max_size=80), st.integers(1, 30), st.floats(0.01, 1))
def test_a_window_quantile_is_that_of_the_newest_values(
    values: list[float], size: int, level: float
) -> None:
    window = RunningWindow(values, size=size)
    kept = sorted(values[-size:])
    answer = window.quantile(level)
    assert answer in kept
    assert sum(v <= answer for v in kept) >= level * len(kept) - 1e-9
    assert window.count == len(values)


@given(text)
def test_surface_features_are_finite_for_any_text(tail: str) -> None:
    values = surface_features(tail)
    assert len(values) == len(NAMES)
    assert all(math.isfinite(value) for value in values)


@given(
    st.lists(st.tuples(text, text, st.none() | tokens, st.none() | st.booleans()), max_size=12),
    text,
    text,
)
def test_a_stage_input_survives_the_wire(
    stages: list[tuple[str, str, int | None, bool | None]], role: str, tail: str
) -> None:
    history = JobHistory()
    for ended_role, step, length, tool in stages:
        history.add(EndedStage(ended_role, step, 5, length, 1, tool, tail))
    stage = StageInput(
        candidates=("a", "b"), role=role, tail=tail, history=history.snapshot(role, "", tail)
    )
    again = StageInput.from_json(json.loads(json.dumps(stage.to_json())))
    assert repr(again) == repr(stage)
    assert repr(again.history) == repr(stage.history)


figures = st.builds(CandidateFigures, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e7))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | figures, tokens, st.booleans()), max_size=40
    )
)
def test_calibrated_figures_are_always_in_order(
    stream: list[tuple[str, CandidateFigures | None, int, bool]],
) -> None:
    state = OnlineState()
    for role, said, length, censored in stream:
        key = StageKey("w", role, "", "m")
        experts = {} if said is None else {"model": said}
        stage = StageInput(candidates=("m",), position=length % 7, prompt_tokens=length)
        told = state.calibrate(key, experts, LengthTraits.of(stage))
        assert 0 <= told.q50 <= told.q90 < math.inf
        assert told.q50 <= told.total < math.inf
        state.observe(key, experts, told, Observation(length, censored, length))
    again = OnlineState.from_json(json.loads(json.dumps(state.to_json())))
    assert again.to_json() == state.to_json()


@given(st.lists(tokens, min_size=1, max_size=30))
def test_the_history_mean_is_the_mean_of_the_logs(lengths: list[int]) -> None:
    history = JobHistory()
    for length in lengths:
        history.add(EndedStage("r", "s", 1, length, 0))
    expected = sum(math.log1p(length) for length in lengths) / len(lengths)
    assert history.snapshot("r", "s").job_mean == pytest.approx(expected)
