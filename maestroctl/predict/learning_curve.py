"""Learning curves on unseen applications: jobs seen -> error and coverage.

Each application is replayed against a base that never saw it, and beside it stands a model trained
on that application: cross-validated by task with the same features, on the same rows. The base is
the first of these that there is (`choose_base`):

1. a model trained on the sources of the folder that share no application with it;
2. the shipped artifact, unless that was trained on the application or on one of its tasks;
3. nothing: running figures and refits on the application's own jobs.

With an artifact that the caller names, the base is that artifact.

Runs of one task are near copies. A refit or a running window sees the earlier ones, as it would
live, while the model trained on the application is held out by task; so each point has the same
figures over the first run of every task alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from maestroctl.errors import PredictorError
from maestroctl.predict import metrics
from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.recalibration import OnlineState
from maestroctl.predict.refit import MIN_STAGES, predict_medians
from maestroctl.predict.replay import ReplayedStream, after, replay_stream
from maestroctl.predict.shipped import load_shipped
from maestroctl.predict.stage_table import StageTable
from maestroctl.predict.traces import TraceJob, folds_of_tasks
from maestroctl.predict.train import TrainConfig, local_config, task_mark, train_model

MARKS = (0, 10, 30, 50, 100, 200, 400, 800)
_MAX_GROUPS = 4
_REFERENCE_FOLDS = 3
_MIN_ROWS = 20
_OTHERS, _SHIPPED, _NOTHING = "other sources of the folder", "shipped artifact", "nothing"
_GIVEN, _GIVEN_SAW = "artifact", "artifact, trained on other tasks of the application"


@dataclass(frozen=True, slots=True)
class Base:
    """What an application is replayed against.

    Attributes:
        name: which of the module's list it is.
        model: None = nothing.
    """

    name: str
    model: PredictorModel | None


def learning_curves(
    jobs: Sequence[TraceJob],
    model: PredictorModel | None,
    config: TrainConfig,
    *,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """``learning_curve``: points per application; ``learning_curve_base``: its base's name.

    Args:
        model: replay against this artifact; None = find a base that never saw the application.
        note: told what a reader of the figures must know.
    """
    curves: dict[str, list[dict[str, Any]]] = {}
    names: dict[str, str] = {}
    bases = _Bases(jobs, model, config, progress)
    for app in sorted({job.app for job in jobs}):
        own = [job for job in jobs if job.app == app]
        base = bases.choose(app, own)
        progress(f"replaying {app}")
        curves[app], names[app] = curve(base.model, own, config), base.name
        if not curves[app]:
            note(f"{app} has no learning curve: none of its output lengths is known")
    for name in sorted(set(names.values())):
        note(f"replayed against {name}: {', '.join(app for app in names if names[app] == name)}")
    return {"learning_curve": curves, "learning_curve_base": names}


class _Bases:
    """Fits or loads bases, each once."""

    def __init__(
        self,
        jobs: Sequence[TraceJob],
        given: PredictorModel | None,
        config: TrainConfig,
        progress: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._given = given
        self._config = replace(config, with_forest=False, num_folds=2)
        self._progress = progress
        self._groups = group_sources(jobs)
        self._fitted: dict[int, PredictorModel | None] = {}

    def choose(self, app: str, own: Sequence[TraceJob]) -> Base:
        """The base of an application and its jobs."""
        if self._given is not None:
            return Base(_GIVEN_SAW if _saw(self._given, app, own) else _GIVEN, self._given)
        others = self._without(own[0].source)
        if others is not None:
            return Base(_OTHERS, others)
        if self._shipped is not None and not _saw(self._shipped, app, own):
            return Base(_SHIPPED, self._shipped)
        return Base(_NOTHING, None)

    def _without(self, source: str) -> PredictorModel | None:
        place = next(k for k, group in enumerate(self._groups) if source in group)
        if place not in self._fitted:
            group = self._groups[place]
            others = [job for job in self._jobs if job.source not in group]
            self._progress(f"base without {', '.join(sorted(group))}")
            enough = _num_known(others) >= MIN_STAGES
            self._fitted[place] = train_model(others, self._config) if enough else None
        return self._fitted[place]

    @cached_property
    def _shipped(self) -> PredictorModel | None:
        try:
            return load_shipped()
        except PredictorError as exc:
            self._progress(f"the shipped artifact is of no use here: {exc}")
            return None


def _saw(model: PredictorModel, app: str, jobs: Sequence[TraceJob]) -> bool:
    """It was trained on the application, or on a task of these jobs."""
    marks = set(model.about.get("tasks", ()))
    return app in model.about.get("apps", {}) or any(task_mark(job.task) in marks for job in jobs)


def _num_known(jobs: Sequence[TraceJob]) -> int:
    return sum(stage.output_tokens is not None for job in jobs for stage in job.stages)


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
    base: PredictorModel | None, jobs: Sequence[TraceJob], config: TrainConfig
) -> list[dict[str, Any]]:
    """One application: figures over all stages that ran after so many jobs."""
    stream = replay_stream(base, jobs, OnlineState(), config)
    reference = _trained_on_it(base, jobs, stream.table, config)
    first = first_runs(jobs)[stream.table.job]
    points = []
    for mark in MARKS:
        rows = after(stream, mark)
        if np.count_nonzero(rows) >= (1 if mark == 0 else _MIN_ROWS):
            point = _figures(stream, reference, rows)
            point["first_runs"] = _figures(stream, reference, rows & first)
            points.append({"jobs": mark, **point})
    return points


def first_runs(jobs: Sequence[TraceJob]) -> BoolArray:
    """Which jobs are the first of their task, (num_jobs,)."""
    seen: set[str] = set()
    out = []
    for job in jobs:
        out.append(job.task not in seen)
        seen.add(job.task)
    return np.array(out, dtype=np.bool_)


def _figures(stream: ReplayedStream, reference: DoubleArray, rows: BoolArray) -> dict[str, Any]:
    table = stream.table
    totals = rows & ~np.isnan(table.remaining)

    def mae(said: DoubleArray) -> float | None:
        told = rows & ~np.isnan(said)
        return metrics.mean_absolute(table.tokens[told], said[told])

    return {
        "stages": int(rows.sum()),
        "mae": mae(stream.q50),
        "mae_without_learning": mae(stream.raw_q50),
        "mae_trained_on_it": mae(reference),
        "coverage": metrics.coverage(table.tokens[rows], stream.q90[rows]),
        "kendall_tau": metrics.kendall_tau(table.remaining[totals], stream.total[totals]),
    }


def _trained_on_it(
    base: PredictorModel | None,
    jobs: Sequence[TraceJob],
    table: StageTable,
    config: TrainConfig,
) -> DoubleArray:
    """Medians of models trained on this application's other tasks; NaN = no such model."""
    encoder = None if base is None else base.builder.embedder.encoder
    out = np.full(len(table.stages), np.nan)
    folds = folds_of_tasks([job.task for job in jobs], _REFERENCE_FOLDS)
    stage_folds = np.array(folds)[table.job]
    for fold in sorted(set(folds)):
        train = [job for job, its in zip(jobs, folds, strict=True) if its != fold]
        if _num_known(train) < _MIN_ROWS:
            continue
        own = train_model(train, local_config(config), encoder=encoder)
        held_out = [job for job, its in zip(jobs, folds, strict=True) if its == fold]
        out[stage_folds == fold] = predict_medians(own, held_out)
    return out
