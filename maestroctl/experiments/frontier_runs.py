"""One run of `frontier`, and what the points of a cell say."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.policy import PolicySpec
from maestroctl.experiments.frontier_fleet import (
    QueryJob,
    TaskSet,
    limit_to,
    make_world,
    with_confidence,
)
from maestroctl.experiments.frontier_systems import System
from maestroctl.experiments.harness import Estimate, estimate
from maestroctl.experiments.pareto import (
    Point,
    dominated,
    gain_at_latency,
    mean_lead,
    speedup_at_quality,
    uncovered,
)
from maestroctl.experiments.setup import LENGTH_RHO, ROUTING
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.world import World
from maestroctl.telemetry.metrics import quantile

MARGIN = 0.05
"""delta_s, the default of a fleet file."""
FRONTIERS = ("ours", "paper form", "no router")
"""Groups that are judged."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fleet and load: what all systems of a comparison share."""

    task: TaskSet
    models: tuple[str, ...]
    pool: str
    queries: Sequence[AnsweredQuery]
    replicas: int
    rate: float


def play(cell: Cell, system: System, jobs: Sequence[QueryJob], warmup: int) -> dict[str, float]:
    """One run: mean and 95th percentile of job latency, quality, share of the best model."""
    policy = PolicySpec(
        ordering=system.ordering,
        routing=ROUTING,
        model_choice=system.choice,
        latency_slack=system.slack or 0.0,
        confidence_margin=MARGIN,
        queue_timeout_s=1e6,
    )
    shown = with_confidence(jobs, system.confidence)
    if system.only is not None:
        shown = limit_to(shown, system.only)
    error = PredictionError() if system.true_lengths else PredictionError("lognormal", LENGTH_RHO)
    world = World(make_world(cell.models, cell.replicas, policy), error)
    was_enabled = gc.isenabled()
    gc.disable()  # a run makes no cyclic garbage while it lasts
    try:
        result = world.run([job.plan for job in shown])
    finally:
        if was_enabled:
            gc.enable()
    served: dict[str, str] = {row.job_id: row.model for row in result.stages}
    queries = {str(job.plan.job_id): job.query for job in jobs[warmup:]}
    latencies, right, best = [], [], []
    for row in result.jobs:
        query = queries.get(row.job_id)
        if query is None or row.status is not JobStatus.FINISHED or row.finished_at is None:
            continue
        model = served[row.job_id]
        latencies.append(row.finished_at - row.submitted_at)
        right.append(query.correct[model])
        best.append(float(model == cell.models[0]))
    p95 = quantile(latencies, 0.95)
    assert p95 is not None
    return {
        "latency_s": fmean(latencies),
        "latency_p95_s": p95,
        "quality_pct": 100.0 * fmean(right),
        "best_model_share": fmean(best),
    }


def judge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One cell: what baselines do to our points, and what ours gain over vLLM's.

    Figures are those of the points' means; with several seeds `intervals` has them seed by seed.
    """
    groups = _points(rows, lambda value: value.mean)
    verdict: dict[str, Any] = {
        "cell": f"{rows[0]['tasks']}, {rows[0]['pool']}, {rows[0]['rate']:g}",
        **{
            group: {
                "dominated": len({p for p, _ in dominated(groups[group], groups["baseline"])}),
                "uncovered": [p.name for p in uncovered(groups[group], groups["baseline"])],
            }
            for group in FRONTIERS
        },
    }
    for (group, key), value in _figures(groups).items():
        verdict[group][key] = value
    num_seeds = len(rows[0]["latency_s"].values)
    if num_seeds > 1:
        found = [
            _figures(_points(rows, lambda value, seed=seed: value.values[seed]))  # type: ignore[misc]
            for seed in range(num_seeds)
        ]
        verdict["intervals"] = {
            f"{group} {key}": estimate(values)
            for group, key in found[0]
            if len(values := [v for f in found if (v := f[group, key]) is not None]) == num_seeds
        }
    return verdict


def _points(
    rows: Sequence[Mapping[str, Any]], read: Callable[[Estimate], float]
) -> dict[str, list[Point]]:
    """By group, at the mean or at one seed."""
    groups: dict[str, list[Point]] = {}
    for row in rows:
        point = Point(row["system"], read(row["latency_s"]), read(row["quality_pct"]))
        groups.setdefault(row["group"], []).append(point)
    return groups


def _figures(groups: Mapping[str, list[Point]]) -> dict[tuple[str, str], float | None]:
    """(group, figure): against vLLM's baseline, and the lead of ours over the other groups."""
    vllm = next(point for point in groups["baseline"] if point.name == "vLLM, round_robin")
    found: dict[tuple[str, str], float | None] = {}
    for group in FRONTIERS:
        found[group, "speedup"] = speedup_at_quality(groups[group], vllm)
        found[group, "gain_pp"] = gain_at_latency(groups[group], vllm)
        if group != FRONTIERS[0]:
            found[group, "lead_pp"] = mean_lead(groups[FRONTIERS[0]], groups[group])
    return found


def summarize(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Headline over all cells."""
    headline: dict[str, Any] = {"cells": len(verdicts)}
    for group in FRONTIERS:
        parts = [verdict[group] for verdict in verdicts]
        name = group.replace(" ", "_")
        headline[f"{name}_points_dominated_by_a_baseline"] = sum(p["dominated"] for p in parts)
        headline[f"{name}_baselines_beyond_the_frontier"] = sum(
            len(part["uncovered"]) for part in parts
        )
        for key in ("speedup", "gain_pp"):
            values = [part[key] for part in parts if part[key] is not None]
            headline[f"{name}_{key}"] = [min(values), max(values)] if values else None
    for group in FRONTIERS[1:]:
        leads = [lead for v in verdicts if (lead := v[group]["lead_pp"]) is not None]
        name = group.replace(" ", "_")
        headline[f"lead_over_{name}_pp"] = [min(leads), max(leads)] if leads else None
    headline["intervals"] = {v["cell"]: v["intervals"] for v in verdicts if "intervals" in v}
    headline["beyond"] = {v["cell"]: v["ours"]["uncovered"] for v in verdicts}
    return headline
