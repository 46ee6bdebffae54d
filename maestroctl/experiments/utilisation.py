"""Maestro Fig. 8: how busy cards are and what memory is reserved, exclusive against co-located.

The same jobs on one card per model (`exclusive`) and on one card that all models share
(`colocated`). A card is busy while any of its engines runs iterations; memory is what the node has
booked (weights, contexts, peaks, KV limits), sampled every few seconds.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.experiments.harness import Experiment, Plot, Runner, Scale, estimate
from maestroctl.experiments.setup import GB, qwen3_profile
from maestroctl.experiments.shared_cards import make_cards, make_exclusive, popular
from maestroctl.sim.report import summarize
from maestroctl.sim.workload import ArrivalSpec, JobSource, WorkloadSpec, make_plans
from maestroctl.sim.world import World
from maestroctl.telemetry.metrics import mean_reserved_bytes, reserved_bytes

MODELS = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b", "qwen3-0.6b")
SHARES = (0.4, 0.3, 0.2, 0.1)
KV_BYTES = 2 * GB
RATES = (0.02, 0.05, 0.1, 0.2)
CV = 3.0
SAMPLE_S = 5.0
JOBS = 300
"""At most; the rates are low, so the time that is simulated is long."""


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Both ways at every rate."""
    experiment = Experiment(
        "utilisation",
        "Cards busy and memory reserved (Maestro Fig. 8)",
        (
            *("layout", "rate", "cards", "busy_per_card", "reserved_gb_per_card"),
            *("peak_gb_per_card", "latency_s", "latency_p95_s"),
        ),
        Plot("rate", "layout", ("busy_per_card", "reserved_gb_per_card", "latency_s")),
        parameters={
            "models": MODELS,
            "popularity": SHARES,
            "cv of gaps": CV,
            "jobs": scale.part(JOBS),
        },
        paper="utilisation is highly intermittent under low load; exclusive cards waste capacity",
    )
    cells = [(layout, rate) for rate in RATES for layout in ("exclusive", "colocated")]
    found = runner.grid(
        lambda cell, seed: _one(scale, source, *cell, seed), cells, scale.runs(scale.grid_seeds)
    )
    for (layout, rate), rows in found.items():
        row: dict[str, Any] = {"layout": layout, "rate": rate, "cards": rows[0]["cards"]}
        for name in experiment.columns[3:]:
            row[name] = estimate([r[name] for r in rows])
        experiment.rows.append(row)
    busy = {(r["layout"], r["rate"]): r["busy_per_card"].mean for r in experiment.rows}
    latency = {(r["layout"], r["rate"]): r["latency_s"].mean for r in experiment.rows}
    experiment.headline = {
        "busy_ratio_by_rate": {str(r): busy["colocated", r] / busy["exclusive", r] for r in RATES},
        "latency_ratio_by_rate": {
            str(r): latency["colocated", r] / latency["exclusive", r] for r in RATES
        },
        "cards": {"exclusive": len(MODELS), "colocated": 1},
    }
    return experiment


def _one(scale: Scale, source: JobSource, layout: str, rate: float, seed: int) -> dict[str, Any]:
    profiles = [qwen3_profile(name, length=8192, kv_bytes=KV_BYTES) for name in MODELS]
    world = make_exclusive(profiles) if layout == "exclusive" else make_cards(profiles)
    workload = WorkloadSpec(
        scale.part(JOBS),
        popular(MODELS, SHARES),
        ArrivalSpec("bursty", rate, CV),
        seed=seed,
    )
    plans = make_plans(workload, source, {p.model: p for p in profiles})
    samples: dict[str, list[NodeSnapshot]] = {name: [] for name in world.nodes}
    busy: dict[str, list[bool]] = {name: [] for name in world.nodes}
    _sample(world, samples, busy)
    result = world.run(plans)
    figures = summarize(result, plans)["all"]["latency_s"]
    reserved = [mean_reserved_bytes(taken) or 0.0 for taken in samples.values()]
    return {
        "cards": len(world.nodes),
        "busy_per_card": fmean(fmean(flags) for flags in busy.values()),
        "reserved_gb_per_card": fmean(reserved) / GB,
        "peak_gb_per_card": max(reserved_bytes(s) for t in samples.values() for s in t) / GB,
        "latency_s": figures["mean"],
        "latency_p95_s": figures["p95"],
    }


def _sample(
    world: World, samples: dict[str, list[NodeSnapshot]], busy: dict[str, list[bool]]
) -> None:
    """Look at every node now, and again."""
    for name, node in world.nodes.items():
        samples[name].append(node.core.snapshot(world.loop.now_s))
        busy[name].append(any(engine.is_busy for engine in node.engines.values()))
    world.loop.after(SAMPLE_S, _sample, world, samples, busy)
