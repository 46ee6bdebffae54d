"""Arrivals, recorded and generated jobs, and predictions with a known error."""

from __future__ import annotations

import gzip
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from maestroctl.domain.ids import ModelName
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import ConfigError
from maestroctl.sim import generator
from maestroctl.sim.arrivals import bursty_times, poisson_times, recorded_times
from maestroctl.sim.fit import EXCLUDED_SOURCES, fit_generator
from maestroctl.sim.jobs import Call
from maestroctl.sim.prediction import PredictionError, Predictor
from maestroctl.sim.traces import load_arrivals, load_jobs
from maestroctl.sim.workload import ClassSpec, JobSource, WorkloadSpec, ideal_s, make_plans
from tests.unit.sim.support import make_profile, many_calls


def _gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in zip([0.0, *times], times, strict=False)]


def test_poisson_gaps_have_the_rate_and_a_variation_of_one() -> None:
    gaps = _gaps(poisson_times(random.Random(1), 20_000, 2.0))
    assert fmean(gaps) == pytest.approx(0.5, rel=0.03)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(1.0, rel=0.05)


def test_bursty_gaps_have_the_rate_and_the_variation_asked_for() -> None:
    gaps = _gaps(bursty_times(random.Random(1), 50_000, 2.0, 3.0))
    assert fmean(gaps) == pytest.approx(0.5, rel=0.06)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(3.0, rel=0.1)


def test_recorded_times_keep_their_shape_and_take_the_rate() -> None:
    times = recorded_times(random.Random(3), 300, 2.0, [0.0, 1.0, 5.0, 6.0])
    gaps = {round(gap, 9) for gap in _gaps(times)[1:]}
    assert gaps == {0.25, 1.0}  # 1, 4 and 1 seconds, scaled from a mean of 2 to 0.5
    assert (times[-1] - times[0]) / 299 == pytest.approx(0.5, rel=0.01)


def _write_traces(folder: Path) -> None:
    stages = folder / "stages"
    stages.mkdir()
    rows = [
        {"source": "s", "app": "a", "job_id": "j1", "stage_index": 1, "role": "r",
         "prompt_tokens": None, "output_tokens": 7, "tools_available": 1, "tool_call": True},
        {"source": "s", "app": "a", "job_id": "j1", "stage_index": 0, "role": "r",
         "prompt_tokens": 10, "output_tokens": 5},
        {"source": "s", "app": "a", "job_id": "j2", "stage_index": 0, "role": "r",
         "prompt_tokens": 10, "output_tokens": None},
    ]  # fmt: skip
    (stages / "stages_s.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arrivals = folder / "arrivals"
    arrivals.mkdir()
    with gzip.open(arrivals / "t.csv.gz", "wt") as file:
        file.write("t_s,prompt_tokens\n3.0,1\n5.0,1\n")


def test_whole_jobs_are_read_in_order_and_incomplete_ones_left_out(tmp_path: Path) -> None:
    _write_traces(tmp_path)
    (job,) = load_jobs(tmp_path)
    assert [(call.prompt_tokens, call.output_tokens) for call in job.calls] == [(10, 5), (15, 7)]
    assert job.calls[1].tool_called
    assert load_arrivals(tmp_path, "t") == [0.0, 2.0]
    assert load_jobs(tmp_path, without=["s"]) == []


def test_missing_data_is_said_with_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stage trace"):
        load_jobs(tmp_path)
    with pytest.raises(ConfigError, match="cannot read the arrivals"):
        load_arrivals(tmp_path, "none")


def test_what_ships_was_not_fitted_to_excluded_sources() -> None:
    parameters = generator.load_parameters()
    assert not set(EXCLUDED_SOURCES) & set(parameters["sources"])
    assert not any(app.startswith("chatdev") for app in parameters["apps"])


def test_a_fit_of_generated_jobs_is_close_to_what_made_them() -> None:
    rng = random.Random(1)
    parameters = generator.load_parameters()
    app = "tau_retail"
    jobs = [generator.make_job(rng, parameters, app) for _ in range(1500)]
    again = fit_generator(jobs)
    jobs_again = [generator.make_job(rng, again, app) for _ in range(1500)]
    tokens, tokens_again = (
        fmean(call.output_tokens for job in made for call in job.calls)
        for made in (jobs, jobs_again)
    )
    assert tokens_again == pytest.approx(tokens, rel=0.1)
    assert again["apps"][app]["correlation"] == pytest.approx(
        parameters["apps"][app]["correlation"], abs=0.1
    )


def test_lengths_are_cut_to_the_model_and_deadlines_follow_the_ideal_time() -> None:
    profile = make_profile(max_model_len=512)
    costs = {profile.model: profile}
    one = ClassSpec(ServiceClass.BATCH, 1.0, ("tau_retail",), deadline_factor=3.0, deadline_s=1.0)
    for plan in make_plans(WorkloadSpec(30, (one,)), JobSource(), costs):
        calls = [call for run in plan.calls.values() for call in run]
        assert all(call.prompt_tokens + call.output_tokens <= 512 for call in calls)
        assert plan.deadline_s == pytest.approx(1.0 + 3.0 * ideal_s(calls, costs))


def test_no_error_is_the_truth_and_says_so() -> None:
    call = Call("r", (ModelName("m"),), 10, 200, noise=(1.0, -1.0))
    prediction = Predictor(PredictionError()).predict(call, {ModelName("m"): 900})
    assert (prediction.output_q50, prediction.output_q90) == (200.0, 200.0)
    assert prediction.total_tokens == {"m": 900.0}
    assert prediction.source == "oracle"


def test_a_log_normal_error_scales_the_same_draw_and_covers_nine_in_ten() -> None:
    rng = random.Random(1)
    predictor = Predictor(PredictionError("lognormal", 0.5))
    covered = 0
    for _ in range(4000):
        noise = (rng.gauss(0, 1), rng.gauss(0, 1))
        call = Call("r", (ModelName("m"),), 1, 100, noise=noise)
        prediction = predictor.predict(call, {ModelName("m"): 100})
        assert prediction.output_q50 == pytest.approx(100 * math.exp(0.5 * noise[0]))
        covered += prediction.output_q90 >= 100
    assert covered / 4000 == pytest.approx(0.9, abs=0.02)


def test_measured_residuals_are_drawn_by_rank() -> None:
    predictor = Predictor(PredictionError("residuals", residuals=(0.4, -0.6, 0.0)))
    call = Call("r", (ModelName("m"),), 1, 100, noise=(0.0, 9.0))
    prediction = predictor.predict(call, {ModelName("m"): 100})
    assert prediction.output_q50 == pytest.approx(100.0)
    assert prediction.total_tokens["m"] == pytest.approx(100 * math.exp(0.4))


def test_what_remains_counts_this_call_and_all_later_ones() -> None:
    calls = [Call("r", (ModelName("m"),), 1, tokens) for tokens in (30, 5, 7)]
    remaining = Predictor(PredictionError()).remaining(many_calls(0, 0.0, calls))
    assert remaining == {("agent", 1, 0): [{"m": 42}, {"m": 12}, {"m": 7}]}


def test_what_remains_is_counted_on_each_model_that_could_produce_it() -> None:
    models = (ModelName("small"), ModelName("large"))
    calls = [
        Call("r", models, 1, 20, output_by_model=dict(zip(models, lengths, strict=True)))
        for lengths in ((30, 10), (8, 2))
    ]
    predictor = Predictor(PredictionError())
    plan = replace(many_calls(0, 0.0, calls), confidence={models[0]: 0.3})
    remaining = predictor.remaining(plan)[("agent", 1, 0)]
    assert remaining == [{"small": 38, "large": 12}, {"small": 8, "large": 2}]
    prediction = predictor.predict(calls[0], remaining[0], plan.confidence)
    assert prediction.total_tokens == {"small": 38.0, "large": 12.0}
    assert prediction.confidence == {"small": 0.3}
    assert (calls[0].tokens_on(models[1]), calls[0].tokens_on(ModelName("other"))) == (10, 20)
