"""Writes ``docs/prediction.md``: the papers' tables beside ours, measured, with intervals.

`maestroctl predictor report` is its command.

Each section, and each encoder of the table of encoders, is kept as JSON in the work folder under
the digest of what it was made from: this package's code, the data and the settings. A run that was
cut short goes on where it stopped, and nothing of another version gets onto the page. Rendering is
in `report_page`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.errors import ArtifactMissing, ConfigError
from maestroctl.predict import evaluate, metrics, output_length
from maestroctl.predict.embedding import WindowEmbedder, split_windows
from maestroctl.predict.features import RowBuilder, fit_schema
from maestroctl.predict.gbm import BoolArray
from maestroctl.predict.kept_sections import Kept, inputs_digest
from maestroctl.predict.learning_curve import learning_curves
from maestroctl.predict.report_page import render_calibration_svg, render_page
from maestroctl.predict.role_regressors import predict_per_role
from maestroctl.predict.routing_tables import RoutingRow, fold_of_item, load_routing_rows
from maestroctl.predict.semantic_router import SemanticRouter
from maestroctl.predict.stage_table import StageTable, make_table
from maestroctl.predict.tool_intent import fit_tool_intent
from maestroctl.predict.traces import TraceJob, fold_of_task, load_trace_jobs
from maestroctl.predict.train import (
    NOT_SHIPPABLE,
    TrainConfig,
    fit_router_on,
    make_encoder,
)

EVALUATION, ENCODERS = "evaluation", "encoders"
_ENCODERS = ("none", "sketch", "static", "minilm")
_ENCODER_SAMPLE = 8
_LATENCY_TEXTS = 150


def measure_all(
    stages: Path,
    routing: Path,
    work: Path,
    config: TrainConfig,
    say: Callable[[str], None],
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Every section, from the work folder where it was measured before.

    Args:
        only: measure no other section than these; None = all.
    """
    work.mkdir(parents=True, exist_ok=True)
    jobs: list[TraceJob] = []

    def all_jobs() -> list[TraceJob]:
        if not jobs:
            jobs.extend(load_trace_jobs(stages))
        return jobs

    kept = Kept(work, inputs_digest((Path(__file__).parent, stages, routing), config))
    sections: dict[str, Callable[[], Any]] = {
        EVALUATION: lambda: evaluate.evaluate_jobs(
            all_jobs(), config=config, with_baselines=True, intervals=True, progress=say
        ),
        "shippable": lambda: measure_shippable(all_jobs(), config, say),
        "ablations": lambda: measure_ablations(all_jobs(), config, say),
        "online": lambda: learning_curves(all_jobs(), None, config, progress=say),
        ENCODERS: lambda: measure_encoders(all_jobs(), config, say, kept),
        "routing": lambda: measure_routing(routing),
    }
    out: dict[str, Any] = {}
    for name, measure in sections.items():
        # The encoders are kept one by one: each takes long, and one that is missing may come.
        parts = [f"encoder-{encoder}" for encoder in _ENCODERS] if name == ENCODERS else [name]
        if only is None or name in only or all(map(kept.holds, parts)):
            out[name] = measure() if name == ENCODERS else kept.get(name, measure, say)
    return out


def measure_shippable(
    jobs: Sequence[TraceJob], config: TrainConfig, say: Callable[[str], None]
) -> dict[str, Any]:
    """Cross-validated figures of a model trained on the sources that may ship."""
    open_jobs = [job for job in jobs if job.source not in NOT_SHIPPABLE]
    table, told = evaluate.cross_validate(
        open_jobs, replace(config, with_forest=False), progress=say
    )
    return evaluate.report_figures(table, told)


def measure_ablations(
    jobs: Sequence[TraceJob], config: TrainConfig, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Length figures on one held-out quarter of the tasks: what each ingredient is worth.

    ``oracle_tool`` gives phase two the true flag: the most that p_tool could ever add.
    """
    held = [fold_of_task(job.task, 4) == 0 for job in jobs]
    train = make_table([job for job, out in zip(jobs, held, strict=True) if not out])
    test = make_table([job for job, out in zip(jobs, held, strict=True) if out])
    encoder = make_encoder(config, train.stages)
    heads = {name: output_length.HEADS[name] for name in ("paper", "mean", "q50", "q90")}
    out: dict[str, dict[str, Any]] = {}
    for name in ("full", "no_tool_intent", "oracle_tool", "no_embedding"):
        say(f"ablation {name}")
        dims = {} if name == "no_embedding" else dict(config.part_dims)
        builder = RowBuilder(fit_schema(train.stages, dims), WindowEmbedder(encoder))
        rows, asked = builder.matrix(train.stages), builder.matrix(test.stages)
        folds = train.folds(3, seed=1)
        columns = builder.schema.category_columns
        if name in ("full", "no_embedding"):
            fitted = fit_tool_intent(rows, train.tool, train.certain, folds, categories=columns)
            p_train, p_test = fitted.out_of_fold, fitted.model.predict(asked, test.certain)
        elif name == "oracle_tool":
            p_train, p_test = (np.nan_to_num(t.tool, nan=0.5) for t in (train, test))
        else:
            p_train, p_test = (np.where(np.isnan(t.certain), 0.5, t.certain) for t in (train, test))
        model = output_length.fit_output_length(
            rows, train.tokens, p_train, train.workflows, folds,
            categories=columns, params=heads, num_threads=config.num_threads,
        )  # fmt: skip
        said = model.predict(asked, p_test, test.workflows)
        out[name] = _ablation_figures(test, said)
        if name == "full":
            say("ablation per_role")
            per_role = predict_per_role(
                said,
                (output_length.with_p_tool(rows, p_train), train.tokens, train.stages),
                (output_length.with_p_tool(asked, p_test), test.stages),
                categories=columns,
                num_threads=config.num_threads,
            )
            out["per_role"] = _ablation_figures(test, per_role)
    return out


def _ablation_figures(test: StageTable, said: output_length.LengthFigures) -> dict[str, Any]:
    known, tools = ~np.isnan(test.tokens), test.with_tools() & ~np.isnan(test.tokens)
    tasks, rows = np.array([test.jobs[k].task for k in test.job]), np.flatnonzero(known)
    workflows = np.array(test.workflows)

    def mae(chosen: BoolArray | npt.NDArray[np.int64]) -> float | None:
        return metrics.mean_absolute(test.tokens[chosen], said.q50[chosen])

    return {
        **metrics.length_metrics(
            test.tokens[known], said.q50[known], said.mean[known], said.paper[known]
        ),
        "mae_interval": metrics.bootstrap_interval(tasks[rows], lambda drawn: mae(rows[drawn])),
        "mae_with_tools": mae(tools),
        "per_app": {
            str(app): mae(rows_of)
            for app in sorted(set(test.workflows))
            if (rows_of := known & (workflows == app)).any()
        },
    }


def measure_encoders(
    jobs: Sequence[TraceJob], config: TrainConfig, say: Callable[[str], None], kept: Kept
) -> dict[str, dict[str, Any]]:
    """Accuracy and milliseconds of every text encoder, on an eighth of the tasks.

    One whose libraries are not installed has ``missing``, the reason, and no figures.
    """
    sample = [job for job in jobs if fold_of_task(job.task, _ENCODER_SAMPLE, seed=7) == 0]
    out: dict[str, dict[str, Any]] = {}
    for name in _ENCODERS:
        try:
            out[name] = kept.get(
                f"encoder-{name}", partial(_measure_encoder, name, sample, config), say
            )
        except ArtifactMissing as exc:
            say(f"encoder {name} could not be measured: {exc}")
            out[name] = {"missing": str(exc)}
    return out


def _measure_encoder(
    name: str, sample: Sequence[TraceJob], config: TrainConfig
) -> dict[str, float | None]:
    dims = {} if name == "none" else dict(config.part_dims)
    own = replace(config, encoder=name, part_dims=dims, with_forest=False)
    table, told = evaluate.cross_validate(sample, own)
    figures = evaluate.report_figures(table, told)
    encoder = make_encoder(own, table.stages)
    embedder, times_ms = WindowEmbedder(encoder), []
    for stage in table.stages[:_LATENCY_TEXTS]:
        windows = split_windows(stage.system) + split_windows(stage.tail)
        began = time.perf_counter()
        embedder.embed_windows(windows)
        times_ms.append((time.perf_counter() - began) * 1e3)
    return {
        "mae": figures["length"]["mae"],
        "r2_log": figures["length"]["r2_log"],
        "log_loss": figures["tool_intent"]["log_loss"],
        "tau": figures["total"]["kendall_tau"],
        "ms_median": metrics.quantile_of(times_ms, 0.5),
        "ms_p99": metrics.quantile_of(times_ms, 0.99),
    }


def measure_routing(folder: Path) -> dict[str, Any]:
    """AUC and Brier score per model on a held-out fifth of the questions."""
    rows = load_routing_rows(folder)
    held = [fold_of_item(row, 5) == 0 for row in rows]
    train = [row for row, out in zip(rows, held, strict=True) if not out]
    test = [row for row, out in zip(rows, held, strict=True) if out]
    return routing_figures(fit_router_on(train), train, test)


def routing_figures(
    router: SemanticRouter, train: Sequence[RoutingRow], test: Sequence[RoutingRow]
) -> dict[str, Any]:
    """Per model: AUC, Brier score of the router and of the model's base rate."""
    said = np.array([router.confidence(r.question, [r.model]).get(r.model, np.nan) for r in test])
    correct, names = np.array([r.correct for r in test]), np.array([r.model for r in test])
    per_model: dict[str, dict[str, Any]] = {}
    for name in sorted(set(names)):
        own = (names == name) & ~np.isnan(said)
        outcomes = [r.correct for r in train if r.model == name]
        if not own.any() or not outcomes:
            continue
        rate = float(np.mean(outcomes))
        per_model[str(name)] = {
            "auc": metrics.area_under_curve(correct[own], said[own]),
            "brier": float(np.mean((said[own] - correct[own]) ** 2)),
            "brier_base_rate": float(np.mean((rate - correct[own]) ** 2)),
            "rows": int(own.sum()),
        }
    areas = [m["auc"] for m in per_model.values() if m["auc"] is not None]
    return {"mean_auc": float(np.mean(areas)) if areas else None, "per_model": per_model}


def write_report(
    stages: Path,
    routing: Path,
    work: Path,
    out: Path,
    *,
    config: TrainConfig,
    say: Callable[[str], None],
    only: Sequence[str] | None = None,
) -> None:
    """Measure what the work folder does not hold yet and write the page and its figure.

    Raises:
        ConfigError: the traces cannot be read, or the evaluation was left out.
    """
    sections = measure_all(stages, routing, work, config, say, only)
    if EVALUATION not in sections:
        raise ConfigError("the page needs the section 'evaluation'", hint=f"--only {EVALUATION}")
    out.write_text(render_page(sections))
    bins = sections[EVALUATION]["calibration"]
    out.with_name("prediction-calibration.svg").write_text(render_calibration_svg(bins))
