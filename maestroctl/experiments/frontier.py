"""Chimera Figs. 5 and 6: latency of jobs against quality of answers, as the slack tau varies.

Quality is the share of jobs whose question the model that served them answered right, as recorded;
latency is the job's, in the simulator. A point is one system at one setting. Systems:

    ours        `maestroctl` with router confidences, STJF, over tau
    paper form  `chimera`, the same
    no router   `maestroctl` without confidences: the stronger model when the slack permits
    baselines   FCFS (vLLM), MLFQ, rank by predicted length (`ltr`) and SJF, models in turn or by
                least load; each model alone
    ablations   in the headline cell: `chimera_full`; ours with an oracle router, with true lengths

All systems of a cell meet the same jobs, arrivals and prediction errors. The number of engines per
model is the fewest with which vLLM's baseline (FCFS, models in turn) stays under the paper's
largest latency at the highest rate; nothing of ours takes part in that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Any

from maestroctl.experiments.frontier_figure import draw_cells
from maestroctl.experiments.frontier_fleet import POOLS, TASK_SETS, QueryJob, TaskSet, make_jobs
from maestroctl.experiments.frontier_runs import MARGIN, Cell, judge, play, summarize
from maestroctl.experiments.frontier_systems import System, systems
from maestroctl.experiments.harness import Experiment, Runner, Scale, estimate
from maestroctl.experiments.setup import LENGTH_RHO
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.sim.outcomes import make_answered
from maestroctl.sim.workload import JobSource

RATES = (8.0, 12.0, 16.0)
HEADLINE_CELL = ("math", "qwen 7+3", 12.0)
"""Task set, pool and rate that are repeated over seeds."""
LONGEST_LATENCY_S = 79.0
"""End-to-end latencies in the paper: 17-79 s (Table 1)."""
MOST_REPLICAS = 16
NUM_GENERATED = 2000
"""Questions made where none are recorded."""
DEFAULT_CELLS = (("math", "qwen 7+3"), ("code", "qwen 7+3"), ("math", "qwen 32+3"))
"""Task set and pool; `--full` runs every pair."""


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Every system in every cell."""
    tables = _load_queries(scale, source, runner)
    experiment = Experiment(
        "frontier",
        "Latency against quality (Chimera Figs. 5 and 6)",
        (
            *("tasks", "pool", "rate", "system", "tau", "latency_s", "latency_p95_s"),
            *("quality_pct", "best_model_share"),
        ),
        lambda figure: draw_cells(figure, experiment.rows),
        parameters={
            "rates, jobs/s": RATES,
            "jobs": scale.jobs,
            "warm-up": scale.warmup,
            "seeds": f"{scale.seeds} for {', '.join(map(str, HEADLINE_CELL))}, else"
            f" {scale.grid_seeds}",
            "delta_s": MARGIN,
            "log error of predicted lengths": LENGTH_RHO,
            "questions from": "recorded tables" if source.folder else "the fitted generator",
            "engines per model": {},
        },
        paper=(
            "1.2-2.4 x lower latency and 8-9.5 pp more right answers; without the router a worse"
            " frontier at every rate"
        ),
    )
    verdicts: list[dict[str, Any]] = []
    for (task, pool), queries in tables.items():
        replicas = _fewest_replicas(task, pool, queries, scale, runner)
        experiment.parameters["engines per model"][f"{task.name}, {pool}"] = replicas
        for rate in RATES:
            cell = Cell(task, POOLS[pool], pool, queries, replicas, rate)
            rows = _run_cell(cell, scale, runner)
            experiment.rows += rows
            verdicts.append(judge(rows))
    experiment.headline = summarize(verdicts)
    experiment.notes = [
        "a point of ours is dominated when some baseline is no slower, no worse, and better in one",
        "`rank by length` is the policy `ltr` with the predicted median length as its score: no"
        " rank was learned for it; `ours`, `no router` and `paper form` have twelve settings each",
        "speed-up: latency of vLLM (FCFS, models in turn) over that of our fastest point of at"
        " least its quality, of measured points; gain: quality of our frontier, straight between"
        " its points over log latency, at its latency, less its own",
        "lead: quality of our frontier above another at equal latency, mean over a log scale; over"
        " `no router` it is what the router's view of each question is worth (Fig. 6); between"
        " points a frontier is read off a straight line, which no system was run on",
        "intervals: the same figures seed by seed, in cells that have several",
        "confidences are out of fold; lengths are predicted with the error above; the paper form's"
        " tau is a share of the fastest latency, ours counts typical services per ten points of"
        " confidence",
    ]
    return experiment


def _load_queries(
    scale: Scale, source: JobSource, runner: Runner
) -> dict[tuple[TaskSet, str], list[AnsweredQuery]]:
    by_name = {task.name: task for task in TASK_SETS}
    pairs: tuple[tuple[str, str], ...] = DEFAULT_CELLS
    if scale.grid_seeds > 1:
        pairs = tuple((task.name, pool) for task in TASK_SETS for pool in POOLS)
    every = sorted({model for models in POOLS.values() for model in models})
    recorded: dict[str, list[AnsweredQuery]] = {}
    for name in dict.fromkeys(name for name, _ in pairs):
        dataset = by_name[name].dataset
        if source.folder is None:
            recorded[name] = make_answered(dataset, NUM_GENERATED)
        else:
            from maestroctl.predict.routing_outcomes import load_answered

            runner.say(f"fitting routers for {dataset}")
            recorded[name] = load_answered(source.folder / "routing", dataset, every)
    return {(by_name[name], pool): recorded[name] for name, pool in pairs}


def _fewest_replicas(
    task: TaskSet, pool: str, queries: Sequence[AnsweredQuery], scale: Scale, runner: Runner
) -> int:
    """Decided by vLLM's baseline alone, on a seed that no figure uses."""
    baseline = System("", "baseline", "fcfs", "round_robin")
    for replicas in range(1, MOST_REPLICAS):
        cell = Cell(task, POOLS[pool], pool, queries, replicas, max(RATES))
        jobs = _jobs(cell, scale, 0)
        latency_s = play(cell, baseline, jobs, scale.warmup)["latency_s"]
        runner.say(f"{task.name}, {pool}: {replicas} engines per model, vLLM {latency_s:.0f} s")
        if latency_s <= LONGEST_LATENCY_S:
            return replicas
    return MOST_REPLICAS


def _jobs(cell: Cell, scale: Scale, seed: int) -> list[QueryJob]:
    return make_jobs(
        cell.task, cell.models, cell.queries, jobs=scale.jobs, rate_rps=cell.rate, seed=seed
    )


def _run_cell(cell: Cell, scale: Scale, runner: Runner) -> list[dict[str, Any]]:
    began = time.perf_counter()
    is_headline = (cell.task.name, cell.pool, cell.rate) == HEADLINE_CELL
    seeds = list(scale.runs(scale.seeds if is_headline else scale.grid_seeds))
    jobs = {seed: _jobs(cell, scale, seed) for seed in seeds}
    known = systems(cell.models, ablations=is_headline)
    found = runner.grid(
        lambda system, seed: play(cell, system, jobs[seed], scale.warmup), known, seeds
    )
    label = f"{cell.task.name}, {cell.pool}, {cell.rate:g} jobs/s"
    num_runs, took_s = len(known) * len(seeds), time.perf_counter() - began
    runner.say(f"{label}: {num_runs} runs in {took_s:.0f} s")
    rows = []
    for system, figures in found.items():
        rows.append(
            {
                "tasks": cell.task.name,
                "pool": cell.pool,
                "rate": cell.rate,
                "system": system.name,
                "group": system.group,
                "tau": "inf" if system.slack == inf else system.slack,
                **{key: estimate([f[key] for f in figures]) for key in figures[0]},
            }
        )
    return rows
