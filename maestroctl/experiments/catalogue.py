"""Names of the experiments. A new one is one file, its test and one line here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from maestroctl.config.kinds import did_you_mean
from maestroctl.errors import ConfigError
from maestroctl.experiments import (
    colocation,
    degradation,
    error_tolerance,
    frontier,
    overcommit,
    preemption,
    prewarm,
    queue_time,
    routing,
    slo_sweep,
    utilisation,
)
from maestroctl.experiments.harness import Experiment, Progress, Runner, Scale
from maestroctl.sim.traces import load_jobs
from maestroctl.sim.workload import JobSource

Run = Callable[[Scale, JobSource, Runner], Experiment]

EXPERIMENTS: Mapping[str, Run] = {
    "slo_sweep": slo_sweep.run,
    "preemption": preemption.run,
    "queue_time": queue_time.run,
    "overcommit": overcommit.run,
    "colocation": colocation.run,
    "routing": routing.run,
    "utilisation": utilisation.run,
    "degradation": degradation.run,
    "prewarm": prewarm.run,
    "error_tolerance": error_tolerance.run,
    "frontier": frontier.run,
}


def check_names(names: Sequence[str]) -> None:
    """Look at all of them before the first one runs.

    Raises:
        ConfigError: no such experiment.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise ConfigError(
                f"no experiment is called {name!r}", hint=did_you_mean(name, EXPERIMENTS)
            )


def run_experiment(
    name: str, scale: Scale, data: Path | None, progress: Progress, *, workers: int = 1
) -> Experiment:
    """Run one experiment.

    Args:
        data: folder of recorded traces; None = the fitted generator.
        workers: processes for runs that are independent of each other.

    Raises:
        ConfigError: no such experiment, or the data cannot be read.
    """
    check_names([name])
    source = JobSource(load_jobs(data) if data is not None else (), data)
    began = time.perf_counter()
    experiment = EXPERIMENTS[name](scale, source, Runner(progress, workers))
    experiment.seconds = time.perf_counter() - began
    experiment.parameters["jobs from"] = "recorded traces" if data else "the fitted generator"
    return experiment
