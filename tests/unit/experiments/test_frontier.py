"""`frontier`: what is compared, on the same jobs, and how it is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maestroctl.experiments import frontier, frontier_systems, output
from maestroctl.experiments.frontier_fleet import (
    POOLS,
    TASK_SETS,
    QueryJob,
    limit_to,
    make_jobs,
    make_profile,
    with_confidence,
)
from maestroctl.experiments.frontier_runs import Cell, judge, play
from maestroctl.experiments.frontier_systems import System, systems
from maestroctl.experiments.harness import Runner, Scale, estimate
from maestroctl.sim.outcomes import make_answered
from maestroctl.sim.workload import JobSource

MATH = TASK_SETS[0]
MODELS = POOLS["qwen 7+3"]
QUERIES = make_answered(MATH.dataset, 50)


def a_cell(rate: float = 2.0) -> Cell:
    return Cell(MATH, MODELS, "qwen 7+3", QUERIES, 1, rate)


def jobs(number: int = 40, seed: int = 1) -> list[QueryJob]:
    return make_jobs(MATH, MODELS, QUERIES, jobs=number, rate_rps=2.0, seed=seed)


def test_a_job_is_cut_into_the_roles_of_its_workflow_and_keeps_its_tokens() -> None:
    for job in jobs():
        calls = [call for run in job.plan.calls.values() for call in run]
        assert [call.role for call in calls] == ["solver", "verifier"]
        for model in MODELS:
            total = sum(call.tokens_on(model) for call in calls)  # type: ignore[arg-type]
            assert total == pytest.approx(job.query.output_tokens[model], abs=2)


def test_the_same_seed_gives_the_same_jobs_whatever_their_number() -> None:
    assert [j.plan for j in jobs(40)][:10] == [j.plan for j in jobs(10)]
    assert [j.plan for j in jobs(10)] != [j.plan for j in jobs(10, seed=2)]


def test_confidences_come_from_the_source_that_is_asked_for() -> None:
    (job,) = jobs(1)
    said, truth = ({m: of[m] for m in MODELS} for of in (job.query.confidence, job.query.correct))
    assert with_confidence([job], "router")[0].plan.confidence == said
    assert with_confidence([job], "oracle")[0].plan.confidence == truth
    assert with_confidence([job], "none")[0].plan.confidence == {}


def test_a_model_alone_serves_everything_and_its_accuracy_is_the_quality() -> None:
    of_run = jobs()
    for model in MODELS:
        alone = System("", "baseline", "fcfs", "first", only=model)
        figures = play(a_cell(), alone, of_run, warmup=5)
        right = [job.query.correct[model] for job in of_run[5:]]
        assert figures["quality_pct"] == pytest.approx(100 * sum(right) / len(right))
        assert figures["best_model_share"] == float(model == MODELS[0])
    assert {m for j in limit_to(of_run, MODELS[1]) for m in j.plan.models} == {MODELS[1]}


def test_the_oracle_router_is_never_wrong_where_some_model_is_right() -> None:
    of_run = jobs()
    oracle = System("", "", "stjf", "most_confident", confidence="oracle")
    figures = play(a_cell(), oracle, of_run, warmup=0)
    best = [max(job.query.correct[model] for model in MODELS) for job in of_run]
    assert figures["quality_pct"] == pytest.approx(100 * sum(best) / len(best))


def test_slack_trades_latency_for_quality() -> None:
    of_run = jobs(150)
    fast, good = (
        play(a_cell(), System("", "ours", "stjf", "maestroctl", slack), of_run, warmup=0)
        for slack in (0.0, float("inf"))
    )
    assert fast["latency_s"] < good["latency_s"]
    assert fast["best_model_share"] < good["best_model_share"]


def test_a_bigger_model_takes_longer_per_token() -> None:
    costs = [make_profile(m).decode_s for m in POOLS["qwen 32+7+3"]]
    assert costs == sorted(costs, reverse=True)


def test_every_system_has_a_name_and_a_setting_of_its_own() -> None:
    known = systems(MODELS)
    assert len({(s.name, s.slack) for s in known}) == len(known)
    assert {s.group for s in known} >= {"ours", "paper form", "no router", "baseline"}


def rows(points: dict[str, tuple[str, float, float]]) -> list[dict[str, object]]:
    return [
        {
            "tasks": "t", "pool": "p", "rate": 8.0, "system": name, "group": group,
            "latency_s": estimate([latency, *more]), "quality_pct": estimate([quality, *more]),
        }
        for name, (group, latency, quality, *more) in points.items()
    ]  # fmt: skip


def test_a_cell_is_judged_on_its_points() -> None:
    verdict = judge(
        rows(
            {
                "ours": ("ours", 10.0, 50.0),
                "paper form": ("paper form", 25.0, 40.0),
                "full form": ("full form", 10.0, 45.0),
                "no router": ("no router", 10.0, 44.0),
                "vLLM, round_robin": ("baseline", 20.0, 45.0),
                "slow but good": ("baseline", 90.0, 60.0),
            }
        )
    )
    assert verdict["ours"]["dominated"] == 0
    assert verdict["ours"]["speedup"] == 2.0
    assert verdict["ours"]["gain_pp"] == 5.0
    assert verdict["ours"]["uncovered"] == ["slow but good"]
    assert verdict["paper form"]["dominated"] == 1


def test_it_runs_from_the_generator_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontier, "DEFAULT_CELLS", (("code", "qwen 7+3"),))
    monkeypatch.setattr(frontier, "RATES", (8.0,))
    for grid in ("OURS", "NO_ROUTER", "PAPER_FORM", "FULL_FORM", "ABLATION"):
        monkeypatch.setattr(frontier_systems, grid, (0.4,))
    scale = Scale(jobs=60, warmup=5, seeds=1)
    experiment = frontier.run(scale, JobSource(), Runner(lambda _line: None))
    assert experiment.headline["cells"] == 1
    written = output.write(experiment, tmp_path)
    document = json.loads(written[0].read_text("utf-8"))
    assert "ours_points_dominated_by_a_baseline" in document["headline"]
    assert document["parameters"]["questions from"] == "the fitted generator"
    assert len(document["rows"]) == len(systems(MODELS, ablations=False))
