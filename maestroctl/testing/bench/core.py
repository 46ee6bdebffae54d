"""``make bench-core``: what a decision costs at 1,000, 10,000 and 100,000 queued stages.

Every event is timed on its own, garbage collection included, under the collector settings with
which `serve` runs: by the clock (`decision_ms`, which the targets are about) and by processor time
(`processor_ms`, which does not see what else the machine does; growth is judged by it). Each depth
is a process of its own, so that memory and garbage are its own.
Prints one JSON document; exit code 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from maestroctl.domain.policy import PolicySpec
from maestroctl.live.garbage import calm
from maestroctl.testing.bench.core_load import CoreLoad
from maestroctl.testing.bench.stats import percentile

DEPTHS = (1_000, 10_000, 100_000)
MODELS = 50
P99_MS, WORST_MS, RESIDENT_MB = 1.0, 25.0, 600.0
TURNS = 12_000


def measure(depth: int, turns: int, models: int, policy: PolicySpec) -> dict[str, Any]:
    """One depth: decision times of every event, resident memory, pauses of the collector."""
    load = CoreLoad(policy, models)
    pauses: list[float] = []
    calm()
    _watch_collector(pauses)
    load.fill(depth)
    pauses.clear()
    spent: list[float] = []
    kinds: dict[str, list[float]] = {}
    processor: list[float] = []
    wall, thread = time.perf_counter, time.thread_time
    for event in load.events(turns):
        began, began_cpu = wall(), thread()
        effects = load.core.handle(event, load.now_s)
        took_cpu, took_ms = (thread() - began_cpu) * 1e3, (wall() - began) * 1e3
        spent.append(took_ms)
        processor.append(took_cpu)
        kinds.setdefault(type(event).__name__, []).append(took_ms)
        load.carry_out(effects)
    figures = {
        "queued": load.core.num_queued,
        "in_flight": load.core.num_in_flight,
        "models": models,
        "events": len(spent),
        "decision_ms": _figures(spent),
        "processor_ms": _figures(processor),
        "kinds_ms": {kind: _figures(values) for kind, values in sorted(kinds.items())},
        "collector_pause_ms": {
            "worst": max(pauses, default=0.0),
            "count": len(pauses),
        },
        "resident_mb": resident_mb(),
    }
    load.core.validate()
    return figures


def _figures(values: list[float]) -> dict[str, float]:
    return {
        "mean": sum(values) / len(values),
        "median": percentile(values, 50),
        "p99": percentile(values, 99),
        "worst": max(values),
    }


def _watch_collector(pauses: list[float]) -> None:
    began = [0.0]

    def note(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            began[0] = time.perf_counter()
        else:
            pauses.append((time.perf_counter() - began[0]) * 1e3)

    gc.callbacks.append(note)


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def growth(figures: list[dict[str, Any]]) -> dict[str, float]:
    """Cost at the deepest queue over that at the shallowest, and the same of log n."""
    first, last = figures[0], figures[-1]
    return {
        "mean": last["processor_ms"]["mean"] / first["processor_ms"]["mean"],
        "median": last["processor_ms"]["median"] / first["processor_ms"]["median"],
        "log_n": math.log(last["queued"]) / math.log(max(2, first["queued"])),
    }


def main() -> None:
    """Measure every depth, print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, help="one depth, in this process")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--models", type=int, default=MODELS)
    parser.add_argument("--ordering", default="workflow_slo")
    parser.add_argument("--routing", default="maestroctl")
    options = parser.parse_args()
    policy = PolicySpec(ordering=options.ordering, routing=options.routing)
    if options.depth is not None:
        figures = measure(options.depth, options.turns, options.models, policy)
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    base = [f"--turns={options.turns}", f"--ordering={options.ordering}"]
    base.append(f"--routing={options.routing}")
    depths = [_run([*base, f"--models={options.models}", f"--depth={n}"]) for n in DEPTHS]
    one_model = _run([*base, "--models=1", f"--depth={DEPTHS[-1]}"])
    document = report(depths, one_model, policy)
    sys.stdout.write(json.dumps(document, indent=1) + "\n")
    sys.exit(0 if all(document["met"].values()) else 1)


def report(
    depths: list[dict[str, Any]], one_model: dict[str, Any], policy: PolicySpec
) -> dict[str, Any]:
    """The document: the deepest queue's figures on top, and whether the targets were met."""
    deepest, grown = depths[-1], growth(depths)
    worst = [deepest, one_model]
    return {
        "decision_ms": deepest["decision_ms"],
        "processor_ms": deepest["processor_ms"],
        "resident_mb": deepest["resident_mb"],
        "growth": grown,
        "met": {
            "p99": all(d["decision_ms"]["p99"] <= P99_MS for d in worst),
            "worst": all(d["decision_ms"]["worst"] <= WORST_MS for d in worst),
            "resident": all(d["resident_mb"] <= RESIDENT_MB for d in worst),
            "growth": grown["mean"] <= grown["log_n"],
        },
        "targets": {"p99_ms": P99_MS, "worst_ms": WORST_MS, "resident_mb": RESIDENT_MB},
        "policy": {"ordering": policy.ordering, "routing": policy.routing},
        "depths": depths,
        "one_model_on_every_engine": one_model,
    }


def _run(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "maestroctl.testing.bench.core", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


if __name__ == "__main__":
    main()
