"""Ours: SLO attainment as predictions get worse; is learning worth it?

One load, a log error that grows from none to e^1.5, and beside it no prediction at all (the same
constant for every stage), which leaves the running medians of the execution profile to work with,
and the errors that our predictors were measured to have. Policies that use no predictions are the
line that the others must stay above.
"""

from __future__ import annotations

from maestroctl.experiments.harness import (
    Experiment,
    Plot,
    Runner,
    Scale,
    estimate,
    known_orderings,
)
from maestroctl.experiments.setup import MEASURED, mixed_simulation
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import JobSource

POLICIES = ("fcfs", "edf", "sjf", "stjf", "workflow_srtf", "workflow_slo")
RHOS = (0.0, 0.25, 0.5, 1.0, 1.5)
NODES = 2
RATE_RPS = 1.0
BATCH_RATIO = 0.4
DEADLINE_FACTOR = 5.0


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Every known policy under every error."""
    errors = {str(rho): PredictionError("lognormal", rho) for rho in RHOS}
    errors["measured"] = MEASURED
    errors["nothing known"] = PredictionError("prior")
    experiment = Experiment(
        "error_tolerance",
        "SLO attainment as prediction error grows",
        ("policy", "error", "slo", "latency_s", "interactive_queue_s"),
        Plot("error", "policy", ("slo", "latency_s")),
        parameters={
            "nodes": NODES,
            "rate": RATE_RPS,
            "batch ratio": BATCH_RATIO,
            "deadline factor": DEADLINE_FACTOR,
            "jobs": scale.jobs,
            "warm-up": scale.warmup,
            "seeds": scale.seeds,
        },
    )
    found = runner.run_grid(
        lambda cell, seed: _spec(scale, source, cell[0], errors[cell[1]], seed),
        [(policy, label) for policy in known_orderings(POLICIES) for label in errors],
        scale.runs(scale.seeds),
    )
    for (policy, label), figures in found.items():
        experiment.rows.append(
            {
                "policy": policy,
                "error": label,
                "slo": estimate([f["all"]["slo_attainment"] for f in figures]),
                "latency_s": estimate([f["all"]["latency_s"]["mean"] for f in figures]),
                "interactive_queue_s": estimate(
                    [f["interactive"]["queue_s"]["mean"] for f in figures]
                ),
            }
        )
    experiment.headline = {
        row["policy"]: {
            r["error"]: r["slo"] for r in experiment.rows if r["policy"] == row["policy"]
        }
        for row in experiment.rows
    }
    return experiment


def _spec(
    scale: Scale, source: JobSource, policy: str, error: PredictionError, seed: int
) -> SimulationSpec:
    return mixed_simulation(
        source,
        scale,
        ordering=policy,
        seed=seed,
        nodes=NODES,
        rate_rps=RATE_RPS,
        batch_ratio=BATCH_RATIO,
        deadline_factor=DEADLINE_FACTOR,
        error=error,
    )
