"""``make bench-sim``: how fast the simulator is, at the size of Maestro's trace.

46,769 jobs in the paper make 144,524 stages; here jobs are drawn until there are that many stages.
A fleet near its capacity, so queues, refusals and batching are all at work.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from maestroctl.domain.units import GIB
from maestroctl.sim.config import SimulationSpec, make_simulation
from maestroctl.sim.run import run_simulation
from maestroctl.sim.workload import make_plans

STAGES = 144_524
TARGET_S = 60.0

_FILE: dict[str, Any] = {
    "model": [
        {
            "name": "qwen3-8b",
            "weights": 15_270_000_000,
            "max_model_len": 16_384,
            "max_batch": 16,
        }
    ],
    "node": [{"count": 4, "memory": 40 * GIB}],
    "arrivals": {"rate": 2.5},
    "class": [
        {"service_class": "interactive", "share": 0.6, "deadline_factor": 4},
        {"service_class": "batch", "share": 0.4, "deadline_factor": 8},
    ],
    "prediction": {"error": "lognormal", "rho": 0.5},
}


def make_spec(stages: int, ordering: str, data: Path | None) -> SimulationSpec:
    """A workload of at least `stages` stages, no more than a job over it."""
    spec = make_simulation({**_FILE, "policy": {"ordering": ordering}}, data=data)
    low, high = 1, stages
    while low < high:
        middle = (low + high) // 2
        workload = replace(spec.workload, jobs=middle)
        plans = make_plans(workload, spec.source, spec.world.profiles)
        total = 0
        for number, plan in enumerate(plans, start=1):
            total += plan.num_calls
            if total >= stages:
                return replace(spec, workload=replace(spec.workload, jobs=number))
        low = middle + 1
    return replace(spec, workload=replace(spec.workload, jobs=low))


def main() -> None:
    """Run and print one JSON document; exit code 1 when it took over `TARGET_S` of one core."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=STAGES)
    parser.add_argument("--ordering", default="fcfs")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    figures = run_simulation(make_spec(options.stages, options.ordering, options.data))
    seconds = figures["seconds"]
    document = {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(figures["cpu_seconds"], 2),
        "target_s": TARGET_S,
        "stages": figures["all"]["stages"],
        "jobs": figures["all"]["jobs"],
        "events": figures["events"],
        "stages_per_s": round(figures["all"]["stages"] / seconds),
        "ordering": options.ordering,
        "busy": figures["busy"],
    }
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    if options.stages == STAGES and seconds > TARGET_S:
        sys.exit(1)


if __name__ == "__main__":
    main()
