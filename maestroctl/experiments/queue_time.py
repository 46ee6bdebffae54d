"""Chimera Fig. 3: average queue time of workflows on a single model under FCFS, SJF and STJF.

Queue time of a job is what its stages wait in the coordinator's queue, summed. Predictions are the
truth (the figure isolates the order, as the paper's does) and, as a second block, carry the log
error that our predictors were measured to have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maestroctl.experiments.harness import (
    Experiment,
    Plot,
    Runner,
    Scale,
    estimate,
    known_orderings,
)
from maestroctl.experiments.setup import MEASURED, TRUTH, mixed_simulation
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import JobSource

POLICIES = ("fcfs", "sjf", "stjf")
NODES = 1
BATCH_RATIO = 0.5
LOADS = (0.9, 1.1, 1.3)
"""Arrival rate as a part of what the node serves when it is never idle."""
ERRORS = {"none": TRUTH, "measured": MEASURED}


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Every policy at every load, with the truth and with errors."""
    policies = known_orderings(POLICIES)
    capacity = serving_rate(scale, source, runner)
    experiment = Experiment(
        "queue_time",
        "Queue time of workflows on one model (Chimera Fig. 3)",
        ("policy", "error", "load", "queue_s_per_job", "mean_latency_s", "less_than_fcfs"),
        Plot("load", "policy", ("queue_s_per_job", "mean_latency_s")),
        parameters={
            "nodes": NODES,
            "batch ratio": BATCH_RATIO,
            "jobs": scale.jobs,
            "warm-up": scale.warmup,
            "capacity, jobs/s": capacity,
        },
        paper="SJF 26-48 % less queue time than FCFS; STJF a further 15-34 % less than SJF",
    )
    queue: dict[tuple[str, str, float], float] = {}
    cells = [(label, load, policy) for label in ERRORS for load in LOADS for policy in policies]
    found = runner.run_grid(
        lambda cell, seed: _spec(scale, source, cell[2], cell[1] * capacity, ERRORS[cell[0]], seed),
        cells,
        scale.runs(scale.seeds),
    )
    for (label, load, policy), figures in found.items():
        waits = estimate([f["all"]["queue_s_per_job"] for f in figures])
        queue[policy, label, load] = waits.mean
        before = queue.get(("fcfs", label, load))
        experiment.rows.append(
            {
                "policy": policy if label == "none" else f"{policy} ({label})",
                "error": label,
                "load": load,
                "queue_s_per_job": waits,
                "mean_latency_s": estimate([f["all"]["latency_s"]["mean"] for f in figures]),
                "less_than_fcfs": 1 - waits.mean / before if before else None,
            }
        )
    experiment.headline = _headline(queue)
    return experiment


def serving_rate(scale: Scale, source: JobSource, runner: Runner) -> float:
    """Jobs per second that a never idle node finishes: all of them are there from the start.

    Taken from the first half of the tokens, since at the end only long jobs are left, alone.
    """
    spec = _spec(scale, source, "fcfs", 1000.0, TRUTH, 0)
    spec = replace(spec, workload=replace(spec.workload, warmup=0))
    figures = runner.run(spec, "capacity")
    return float(scale.jobs / 2 / (figures["half_output_s"] - spec.workload.start_s))


def _spec(
    scale: Scale, source: JobSource, policy: str, rate: float, error: PredictionError, seed: int
) -> SimulationSpec:
    return mixed_simulation(
        source,
        scale,
        ordering=policy,
        seed=seed,
        nodes=NODES,
        rate_rps=rate,
        batch_ratio=BATCH_RATIO,
        deadline_factor=None,
        error=error,
    )


def _headline(queue: dict[tuple[str, str, float], float]) -> dict[str, Any]:
    """Reductions per load with true predictions."""
    headline: dict[str, Any] = {}
    for load in LOADS:
        fcfs, sjf, stjf = (queue.get((policy, "none", load)) for policy in POLICIES)
        if fcfs and sjf:
            headline[f"sjf_below_fcfs_load_{load}"] = 1 - sjf / fcfs
        if sjf and stjf:
            headline[f"stjf_below_sjf_load_{load}"] = 1 - stjf / sjf
    return headline
