"""Measures the predictors on any folder of stage traces.

``maestroctl evaluate --stages DIR [--artifact FILE] [--online] --json``

Without an artifact the figures are cross-validated: folds by task, every model fitted on the other
folds, so no figure is about a task that was trained on. With an artifact they are about that
artifact, on the tasks it was not trained on; how many were left out stands in the report.

Rows: length figures on stages with a known output length; tool figures on stages with tools and a
known answer; totals on stages from which all later lengths are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.errors import ConfigError, PredictorError
from maestroctl.predict import baselines, metrics
from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.latency import measure_latency
from maestroctl.predict.learning_curve import learning_curves
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.stage_table import StageTable, make_table
from maestroctl.predict.traces import TraceJob, folds_of_tasks
from maestroctl.predict.train import TrainConfig, can_train, task_mark, train_model


@dataclass(slots=True)
class Told:
    """What was predicted for every stage of a table, NaN where nothing was, each (num_stages,).

    Attributes:
        baselines: by name; empty unless asked for.
        mlp_tool: the baseline classifier's probability.
    """

    p_tool: DoubleArray
    paper: DoubleArray
    mean: DoubleArray
    q50: DoubleArray
    q90: DoubleArray
    total: DoubleArray
    total_chimera: DoubleArray
    baselines: dict[str, DoubleArray]
    mlp_tool: DoubleArray

    @classmethod
    def empty(cls, size: int, names: Sequence[str] = ()) -> Told:
        """Nothing told yet."""

        def blank() -> DoubleArray:
            return np.full(size, np.nan)

        return cls(
            p_tool=blank(),
            paper=blank(),
            mean=blank(),
            q50=blank(),
            q90=blank(),
            total=blank(),
            total_chimera=blank(),
            baselines={name: blank() for name in names},
            mlp_tool=blank(),
        )


def tell(model: PredictorModel, table: StageTable, told: Told, rows_at: BoolArray) -> None:
    """Fill `told` at the chosen stages with one model's predictions."""
    stages = [stage for stage, chosen in zip(table.stages, rows_at, strict=True) if chosen]
    if not stages:
        return
    rows = model.builder.matrix(stages)
    told.p_tool[rows_at], figures = model.length_figures(rows, stages)
    told.paper[rows_at], told.mean[rows_at] = figures.paper, figures.mean
    told.q50[rows_at], told.q90[rows_at] = figures.q50, figures.q90
    told.total[rows_at] = model.total.predict(rows)
    if model.total.forest is not None:
        told.total_chimera[rows_at] = model.total.predict(rows, "chimera")


def cross_validate(
    jobs: Sequence[TraceJob],
    config: TrainConfig,
    *,
    num_folds: int = 4,
    with_baselines: bool = False,
    progress: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[StageTable, Told]:
    """Predict every stage by a model that was fitted on other tasks.

    A fold for which the others hold too few known lengths to fit on is left out, with a note.

    Raises:
        ConfigError: fewer than two tasks, or no fold can be predicted.
    """
    table = make_table(jobs)
    job_folds = np.array(folds_of_tasks([job.task for job in jobs], num_folds))
    folds = job_folds[table.job]
    filled = [int(fold) for fold in np.unique(job_folds)]
    if len(filled) < 2:
        raise ConfigError("cross-validation needs jobs of at least two tasks")
    names = tuple(baselines.LENGTH_BASELINES) if with_baselines else ()
    told = Told.empty(len(table.stages), names)
    for fold in filled:
        progress(f"fold {fold + 1} of {num_folds}")
        train = [job for job, its in zip(jobs, job_folds, strict=True) if its != fold]
        if not can_train(train):
            note(f"{np.count_nonzero(folds == fold)} stages are not judged: the other tasks hold"
                 " too few known output lengths to fit on")  # fmt: skip
            continue
        model = train_model(train, config)
        tell(model, table, told, folds == fold)
        if with_baselines:
            _tell_baselines(model, train, table, told, folds == fold)
    if np.isnan(told.q50).all():
        raise ConfigError("too few output lengths are known to fit on in any fold")
    return table, told


def _tell_baselines(
    model: PredictorModel,
    train: Sequence[TraceJob],
    table: StageTable,
    told: Told,
    rows_at: BoolArray,
) -> None:
    """Fit every baseline on the same training rows and predict the same held-out rows."""
    own = make_table(train)
    rows = model.builder.matrix(own.stages)
    asked = [stage for stage, chosen in zip(table.stages, rows_at, strict=True) if chosen]
    asked_rows = model.builder.matrix(asked)
    known = ~np.isnan(own.tokens)
    known_stages = [stage for stage, keep in zip(own.stages, known, strict=True) if keep]
    for name, fit in baselines.LENGTH_BASELINES.items():
        predict = fit(rows[known], known_stages, own.tokens[known], model.builder.schema)
        told.baselines[name][rows_at] = predict(asked_rows, asked)
    with_tools = own.with_tools()
    classify = baselines.fit_mlp_tool(rows[with_tools], own.tool[with_tools])
    told.mlp_tool[rows_at] = classify(asked_rows)


def report_figures(table: StageTable, told: Told, *, intervals: bool = False) -> dict[str, Any]:
    """The figures of one evaluation, pooled and per application."""
    out = _figures(table, told, ~np.isnan(told.q50))
    apps = np.array([table.jobs[number].app for number in table.job])
    out["per_app"] = {
        str(app): _figures(table, told, ~np.isnan(told.q50) & (apps == app))
        for app in np.unique(apps)
    }
    tools = table.with_tools() & ~np.isnan(told.p_tool)
    out["calibration"] = metrics.calibration_bins(table.tool[tools], told.p_tool[tools])
    if told.baselines:
        out["baselines"] = _baseline_figures(table, told)
    if intervals:
        out["intervals"] = _intervals(table, told)
    return out


def _figures(table: StageTable, told: Told, chosen: BoolArray) -> dict[str, Any]:
    length = chosen & ~np.isnan(table.tokens)
    tools = chosen & table.with_tools()
    totals = chosen & ~np.isnan(table.remaining)
    return {
        "length": metrics.length_metrics(
            table.tokens[length], told.q50[length], told.mean[length], told.paper[length]
        ),
        "tool_intent": metrics.tool_metrics(table.tool[tools], told.p_tool[tools]),
        "total": _total_figures(table, told, totals),
        "coverage": {"q90": metrics.coverage(table.tokens[length], told.q90[length])},
    }


def _total_figures(table: StageTable, told: Told, chosen: BoolArray) -> dict[str, Any]:
    first = table.admission[chosen]
    seen = table.remaining[chosen]
    out = metrics.total_metrics(seen, told.total[chosen], first)
    if not np.isnan(told.total_chimera[chosen]).any():
        out["chimera"] = metrics.total_metrics(seen, told.total_chimera[chosen], first)
    prompt = np.array(
        [s.prompt_tokens for s, keep in zip(table.stages, chosen, strict=True) if keep]
    )
    out["prompt_length"] = {"kendall_tau": metrics.kendall_tau(seen, prompt.astype(np.float64))}
    return out


def _baseline_figures(table: StageTable, told: Told) -> dict[str, Any]:
    known = ~np.isnan(table.tokens) & ~np.isnan(told.q50)
    seen = table.tokens[known]
    out: dict[str, Any] = {}
    for name, values in told.baselines.items():
        said = values[known]
        out[name] = {"mae": metrics.mean_absolute(seen, said), "r2": metrics.r_squared(seen, said)}
    tools = table.with_tools() & ~np.isnan(told.mlp_tool)
    out["mlp_tool"] = metrics.tool_metrics(table.tool[tools], told.mlp_tool[tools])
    return out


def _intervals(table: StageTable, told: Told) -> dict[str, tuple[float, float] | None]:
    """95 % bootstrap intervals over tasks, by the figure's place in the report."""
    tasks = np.array([table.jobs[number].task for number in table.job])
    apps = np.array(table.workflows)
    length = ~np.isnan(table.tokens) & ~np.isnan(told.q50)
    tools = table.with_tools() & ~np.isnan(told.p_tool)
    totals = ~np.isnan(table.remaining) & ~np.isnan(told.q50)
    out: dict[str, tuple[float, float] | None] = {}

    def over(
        name: str, chosen: BoolArray, measure: Callable[[npt.NDArray[np.int64]], float | None]
    ) -> None:
        rows = np.flatnonzero(chosen)
        out[name] = metrics.bootstrap_interval(tasks[rows], lambda drawn: measure(rows[drawn]))

    def mae_over(name: str, chosen: BoolArray, said: DoubleArray) -> None:
        over(name, chosen, lambda k: metrics.mean_absolute(table.tokens[k], said[k]))

    mae_over("length.mae", length, told.q50)
    over("length.r2", length, lambda k: metrics.r_squared(table.tokens[k], told.mean[k]))
    over("coverage.q90", length, lambda k: metrics.coverage(table.tokens[k], told.q90[k]))
    for figure in ("f1", "log_loss", "ece"):
        over(
            f"tool_intent.{figure}",
            tools,
            lambda k, figure=figure: metrics.tool_metrics(table.tool[k], told.p_tool[k])[figure],  # type: ignore[misc]
        )
    for name, rows in (("", totals), ("_admission", totals & table.admission)):
        over(
            f"total.kendall_tau{name}",
            rows,
            lambda k: metrics.kendall_tau(table.remaining[k], told.total[k]),
        )
    for name, said in told.baselines.items():
        mae_over(f"baselines.{name}.mae", length & ~np.isnan(said), said)
    for app in np.unique(apps):
        mae_over(f"per_app.{app}.length.mae", length & (apps == app), told.q50)
    return out


def evaluate_artifact(
    jobs: Sequence[TraceJob], model: PredictorModel
) -> tuple[StageTable, Told, int]:
    """Predict the jobs whose task the artifact was not trained on.

    Returns:
        Table, predictions, and how many jobs were left out.

    Raises:
        ConfigError: it was trained on every task there.
    """
    marks = set(model.about.get("tasks", ()))
    fresh = [job for job in jobs if task_mark(job.task) not in marks]
    if not fresh:
        raise ConfigError(
            "the artifact was trained on every task of this folder",
            hint="leave out --artifact to cross-validate instead",
        )
    table = make_table(fresh)
    told = Told.empty(len(table.stages))
    tell(model, table, told, np.ones(len(table.stages), dtype=np.bool_))
    return table, told, len(jobs) - len(fresh)


def evaluate_jobs(
    jobs: Sequence[TraceJob],
    *,
    model: PredictorModel | None = None,
    config: TrainConfig | None = None,
    num_folds: int = 4,
    online: bool = False,
    with_baselines: bool = False,
    intervals: bool = False,
    latency_stages: int = 400,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The whole report of ``maestroctl evaluate`` as plain values; ``notes`` are sentences.

    Args:
        model: judge this artifact; None = cross-validate `config` on the jobs.
        online: add ``learning_curve``, each application replayed as one nobody has seen, and
            ``learning_curve_base``, what it was replayed against.
        latency_stages: stages replayed through the predictor process; 0 = do not measure.
    """
    config = config or TrainConfig()
    left_out, notes = 0, list[str]()
    if model is None:
        table, told = cross_validate(
            jobs,
            config,
            num_folds=num_folds,
            with_baselines=with_baselines,
            progress=progress,
            note=notes.append,
        )
        source = "cross_validation"
        protocol = f"{num_folds}-fold cross-validation by task"
    else:
        table, told, left_out = evaluate_artifact(jobs, model)
        source = "artifact"
        protocol = f"artifact as it is, without {left_out} jobs of tasks it was trained on"
    out = {
        "source": source,
        "protocol": protocol,
        "jobs": len(table.jobs),
        "stages": len(table.stages),
        "trained_jobs_left_out": left_out,
        **report_figures(table, told, intervals=intervals),
    }
    if latency_stages:
        progress("latency")
        served = model or train_model(jobs, replace(config, with_forest=False, num_folds=2))
        try:
            out["latency_ms"] = measure_latency(served, jobs, latency_stages)
        except PredictorError as exc:
            # Hours of cross-validation must not be lost to a process that would not start.
            notes.append(f"latency could not be measured: {exc}")
            out["latency_ms"] = {"median": None, "p99": None, "stages": 0}
    if online:
        # `table.jobs` are the jobs of tasks that an artifact was not trained on.
        out |= learning_curves(table.jobs, model, config, progress=progress, note=notes.append)
    out["notes"] = notes
    return out
