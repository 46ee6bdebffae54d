"""Learning curves on unseen applications: jobs seen -> error and coverage.

Each application is replayed against a base model that never saw it (nor its sister applications of
the same source), and beside it stands a model trained on that application: cross-validated by task
with the same features, on the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from maestroctl.predict import metrics
from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.refit import predict_medians
from maestroctl.predict.replay import ReplayedStream, after, replay_stream
from maestroctl.predict.stage_table import StageTable
from maestroctl.predict.traces import TraceJob, fold_of_task
from maestroctl.predict.train import TrainConfig, local_config, train_model

MARKS = (0, 10, 30, 50, 100, 200, 400, 800)
_MAX_GROUPS = 4
_REFERENCE_FOLDS = 3
_MIN_ROWS = 20


def learning_curves(
    jobs: Sequence[TraceJob],
    model: PredictorModel | None,
    config: TrainConfig,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[dict[str, Any]]]:
    """A curve per application.

    Args:
        model: replay against this artifact; None = fit bases that leave the application out.
    """
    curves: dict[str, list[dict[str, Any]]] = {}
    if model is not None:
        for app in sorted({job.app for job in jobs}):
            progress(f"replaying {app}")
            curves[app] = curve(model, [job for job in jobs if job.app == app], config)
        return curves
    light = replace(config, with_forest=False, num_folds=2)
    for sources in group_sources(jobs):
        others = [job for job in jobs if job.source not in sources]
        if not others:
            continue
        progress(f"base without {', '.join(sorted(sources))}")
        base = train_model(others, light)
        for app in sorted({job.app for job in jobs if job.source in sources}):
            progress(f"replaying {app}")
            curves[app] = curve(base, [job for job in jobs if job.app == app], config)
    return curves


def group_sources(jobs: Sequence[TraceJob]) -> list[set[str]]:
    """Sources in at most `_MAX_GROUPS` groups of similar size; a shared application joins them.

    A base is fitted per group, not per application: it then knows even less.
    """
    sizes = Counter[str]()
    for job in jobs:
        sizes[job.source] += len(job.stages)
    joined = {source: {source} for source in sizes}
    for app in {job.app for job in jobs}:
        shared = {job.source for job in jobs if job.app == app}
        union = set().union(*(joined[source] for source in shared))
        for source in union:
            joined[source] = union
    clusters = {frozenset(cluster) for cluster in joined.values()}
    groups: list[set[str]] = [set() for _ in range(max(2, min(_MAX_GROUPS, len(clusters))))]
    loads = [0] * len(groups)
    for cluster in sorted(clusters, key=lambda c: (-sum(sizes[s] for s in c), sorted(c))):
        place = loads.index(min(loads))
        groups[place] |= cluster
        loads[place] += sum(sizes[source] for source in cluster)
    return [group for group in groups if group]


def curve(
    base: PredictorModel, jobs: Sequence[TraceJob], config: TrainConfig
) -> list[dict[str, Any]]:
    """One application: figures over all stages that ran after so many jobs."""
    stream = replay_stream(base, jobs, OnlineState(), config)
    reference = _trained_on_it(base, jobs, stream.table, config)
    points = []
    for mark in MARKS:
        rows = after(stream, mark)
        if np.count_nonzero(rows) >= _MIN_ROWS:
            points.append({"jobs": mark, **_point(stream, reference, rows)})
    return points


def _point(stream: ReplayedStream, reference: DoubleArray, rows: BoolArray) -> dict[str, Any]:
    table = stream.table
    seen, own = table.tokens[rows], reference[rows]
    totals = rows & ~np.isnan(table.remaining)
    mae = metrics.mean_absolute(seen, stream.q50[rows])
    compared = ~np.isnan(own)
    trained = metrics.mean_absolute(seen[compared], own[compared])
    return {
        "stages": int(rows.sum()),
        "mae": mae,
        "mae_without_learning": metrics.mean_absolute(seen, stream.raw_q50[rows]),
        "mae_trained_on_it": trained,
        "coverage": metrics.coverage(seen, stream.q90[rows]),
        "kendall_tau": metrics.kendall_tau(table.remaining[totals], stream.total[totals]),
    }


def _trained_on_it(
    base: PredictorModel, jobs: Sequence[TraceJob], table: StageTable, config: TrainConfig
) -> DoubleArray:
    """Medians of models trained on this application's other tasks; NaN = no such model."""
    out = np.full(len(table.stages), np.nan)
    folds = [fold_of_task(job.task, _REFERENCE_FOLDS) for job in jobs]
    stage_folds = np.array(folds)[table.job]
    for fold in sorted(set(folds)):
        train = [job for job, its in zip(jobs, folds, strict=True) if its != fold]
        known = sum(s.output_tokens is not None for job in train for s in job.stages)
        if known < _MIN_ROWS:
            continue
        own = train_model(train, local_config(config), encoder=base.builder.embedder.encoder)
        held_out = [job for job, its in zip(jobs, folds, strict=True) if its == fold]
        out[stage_folds == fold] = predict_medians(own, held_out)
    return out
