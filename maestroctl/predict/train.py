"""Fits every predictor from a folder of traces and writes one artifact.

``maestroctl train --stages DIR --out FILE``

Every choice (encoder, tree counts, folds) is fixed here or made inside the training jobs; nothing
looks at a job that is held out. Folds are by task.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from maestroctl.errors import ConfigError
from maestroctl.predict import artifact, output_length, remaining_length, tool_intent
from maestroctl.predict.embedding import FloatArray, TextEncoder, WindowEmbedder, split_windows
from maestroctl.predict.encoders.minilm import MiniLmEncoder
from maestroctl.predict.encoders.none import NoEncoder
from maestroctl.predict.encoders.projected import fit_projection
from maestroctl.predict.encoders.sketch import fit_sketch
from maestroctl.predict.encoders.static import distil_static
from maestroctl.predict.features import RowBuilder, fit_schema
from maestroctl.predict.gbm import GbmParams
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.routing_tables import RoutingRow, fold_of_item, load_routing_rows
from maestroctl.predict.semantic_router import SemanticRouter, fit_router
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.stage_table import StageTable, make_table
from maestroctl.predict.traces import TraceJob, load_trace_jobs

NOT_SHIPPABLE = ("mast_chatdev",)
"""Sources that nothing that ships may be trained on: their licence may be non-commercial."""

_MAX_FIT_WINDOWS = 12_000
_ROUTER_DIMENSION = 48
_PART_DIMS: Mapping[str, int] = {"system": 4, "tail": 8, "near": 16, "first": 8}


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Settings of one training run.

    Attributes:
        encoder: ``sketch``, ``static``, ``minilm`` or ``none``.
        part_dims: text part -> dimensions of the encoder that a row keeps.
        tool_intent: False is the ablation ``no_tool_intent``.
        num_folds: inner folds, by task, for out-of-fold probabilities and conformal offsets.
        min_count: rows a category's value needs to get a code.
        with_forest: fit the paper's forest beside the default form.
        reads_text: False = fit on and serve stages without their text.
        local: small trees for the few hundred stages of one fleet's own history.
    """

    encoder: str = "sketch"
    part_dims: Mapping[str, int] = field(default_factory=lambda: dict(_PART_DIMS))
    tool_intent: bool = True
    num_folds: int = 3
    min_count: int = 20
    with_forest: bool = True
    reads_text: bool = True
    local: bool = False
    seed: int = 0
    num_threads: int = 1


def ablation(name: str, base: TrainConfig | None = None) -> TrainConfig:
    """The configuration of a named ablation.

    Raises:
        ConfigError: no such ablation.
    """
    config = base or TrainConfig()
    match name:
        case "no_embedding":
            return replace(config, encoder="none", part_dims={})
        case "no_tool_intent":
            return replace(config, tool_intent=False)
    raise ConfigError(f"unknown ablation {name!r}", hint="no_embedding or no_tool_intent")


def local_config(base: TrainConfig | None = None) -> TrainConfig:
    """Settings for a refit on own history."""
    return replace(base or TrainConfig(), min_count=3, with_forest=False, local=True, num_folds=3)


def train_model(
    jobs: Sequence[TraceJob],
    config: TrainConfig | None = None,
    *,
    encoder: TextEncoder | None = None,
    router: SemanticRouter | None = None,
) -> PredictorModel:
    """Fit all stage predictors.

    Args:
        jobs: the training jobs.
        encoder: already fitted (or a cached one); None = make what `config` names.
        router: put into the model as it is.
    """
    config = config or TrainConfig()
    table = make_table(jobs)
    if not can_train(jobs):
        raise ConfigError("training needs at least two stages with a known output length")
    made = encoder or make_encoder(config, table.stages)
    schema = fit_schema(
        table.stages,
        _cut_dims(config.part_dims, made.dimension),
        min_count=config.min_count,
        reads_text=config.reads_text,
    )
    builder = RowBuilder(schema, WindowEmbedder(made))
    rows = builder.matrix(table.stages)
    return fit_on_rows(table, rows, builder, config, router)


def can_train(jobs: Sequence[TraceJob]) -> bool:
    """There are the two known output lengths that the heads need at least."""
    known = (s for job in jobs for s in job.stages if s.output_tokens is not None)
    return len(list(islice(known, 2))) == 2


def fit_on_rows(
    table: StageTable,
    rows: FloatArray,
    builder: RowBuilder,
    config: TrainConfig,
    router: SemanticRouter | None = None,
) -> PredictorModel:
    """Fit the heads on rows that were built before."""
    schema = builder.schema
    folds = table.folds(config.num_folds, seed=config.seed + 1)
    params = _local_heads(len(rows)) if config.local else output_length.HEADS
    tool, p_tool = None, np.where(np.isnan(table.certain), 0.5, table.certain)
    if config.tool_intent:
        fitted = tool_intent.fit_tool_intent(
            rows,
            table.tool,
            table.certain,
            folds,
            categories=schema.category_columns,
            params=_local_params("binary", len(rows)) if config.local else tool_intent.CLASSIFIER,
            num_threads=config.num_threads,
        )
        tool, p_tool = fitted.model, fitted.out_of_fold
    length = output_length.fit_output_length(
        rows,
        table.tokens,
        p_tool,
        table.workflows,
        np.zeros_like(folds) if config.local else folds,
        categories=schema.category_columns,
        params=params,
        num_threads=config.num_threads,
    )
    remaining = table.remaining
    if np.isnan(remaining).all():
        # No job here shows its whole length; what is known of it is the best guess there is.
        remaining = remaining_length.remaining_targets(table.jobs, at_least=True)
    total = remaining_length.fit_remaining_length(
        rows,
        remaining,
        schema,
        params=_local_params("l1", len(rows)) if config.local else remaining_length.TOTAL,
        with_forest=config.with_forest,
        num_threads=config.num_threads,
    )
    return PredictorModel(builder, tool, length, total, router, _describe(table, config))


def make_encoder(config: TrainConfig, stages: Sequence[StageInput]) -> TextEncoder:
    """The text encoder `config` names, fitted on windows of the training stages.

    Traces may be without any text; then there is nothing to encode.

    Raises:
        ConfigError: no such encoder.
    """
    dimension = max(config.part_dims.values(), default=0)
    windows = sample_windows(stages, config.seed) if config.encoder != "none" else []
    if not windows:
        return NoEncoder()
    match config.encoder:
        case "minilm":
            inner = MiniLmEncoder(num_threads=config.num_threads)
            return fit_projection(inner, windows[:1500], dimension)
        case "sketch":
            return fit_sketch(windows, dimension, seed=config.seed)
        case "static":
            teacher = MiniLmEncoder(num_threads=config.num_threads)
            return distil_static(teacher, windows, dimension)
    raise ConfigError(
        f"unknown text encoder {config.encoder!r}", hint="sketch, static, minilm or none"
    )


def sample_windows(stages: Sequence[StageInput], seed: int) -> list[str]:
    """Distinct windows of the stages, a seeded sample of at most `_MAX_FIT_WINDOWS`."""
    distinct: dict[str, None] = {}
    for stage in stages:
        distinct.update(dict.fromkeys(split_windows(stage.tail)))
        distinct.update(dict.fromkeys(split_windows(stage.system)))
    windows = list(distinct)
    order = np.random.default_rng(seed).permutation(len(windows))[:_MAX_FIT_WINDOWS]
    return [windows[place] for place in order]


def train_router(folder: Path, *, seed: int = 0) -> SemanticRouter:
    """Fit the confidence router from a folder of correctness tables."""
    return fit_router_on(load_routing_rows(folder), seed=seed)


def fit_router_on(rows: Sequence[RoutingRow], *, seed: int = 0) -> SemanticRouter:
    """Fit the confidence router on these rows, with a sketch of its own."""
    distinct = list(dict.fromkeys(w for row in rows for w in split_windows(row.question)))
    order = np.random.default_rng(seed).permutation(len(distinct))[:_MAX_FIT_WINDOWS]
    sketch = fit_sketch([distinct[k] for k in order], _ROUTER_DIMENSION, seed=seed)
    return fit_router(
        WindowEmbedder(sketch),
        [row.question for row in rows],
        [row.model for row in rows],
        [row.correct for row in rows],
        [fold_of_item(row, 4) for row in rows],
    )


def task_mark(task: str) -> str:
    """Short hash of a task, so that an evaluation can tell what was trained on."""
    return hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()


def _cut_dims(part_dims: Mapping[str, int], dimension: int) -> dict[str, int]:
    return {part: min(size, dimension) for part, size in part_dims.items()}


def _local_params(objective: str, num_rows: int, alpha: float | None = None) -> GbmParams:
    """Small trees: their number and size grow with the rows at hand."""
    return GbmParams(
        objective,
        rounds=int(np.clip(num_rows // 10, 40, 250)),
        num_leaves=int(np.clip(num_rows // 60, 7, 63)),
        learning_rate=0.08,
        min_data_in_leaf=int(np.clip(num_rows // 100, 5, 25)),
        alpha=alpha,
    )


def _local_heads(num_rows: int) -> dict[str, GbmParams]:
    return {
        "q50": _local_params("l1", num_rows),
        "q90": _local_params("quantile", num_rows, 0.9),
    }


def _describe(table: StageTable, config: TrainConfig) -> dict[str, Any]:
    return {
        "stages": len(table.stages),
        "jobs": len(table.jobs),
        "sources": sorted({job.source for job in table.jobs}),
        "apps": dict(sorted(Counter(job.app for job in table.jobs).items())),
        "tasks": sorted({task_mark(job.task) for job in table.jobs}),
        "config": {**asdict(config), "part_dims": dict(config.part_dims)},
    }


def dated(model: PredictorModel) -> PredictorModel:
    """The model with the time of its training, UTC, among its facts.

    `train_model` leaves it out: equal jobs give equal bytes.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return replace(model, about={**model.about, "trained_at": now})


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What to train on and where to write it.

    Attributes:
        exclude: names of applications or sources.
        licensed_only: leave out `NOT_SHIPPABLE` too.
    """

    stages: Path
    out: Path
    routing: Path | None = None
    exclude: tuple[str, ...] = ()
    licensed_only: bool = False
    config: TrainConfig = field(default_factory=TrainConfig)


def load_jobs(folder: Path, exclude: Sequence[str]) -> list[TraceJob]:
    """Jobs of a folder whose application and source are not excluded.

    Raises:
        ConfigError: no trace there, a name that is not in the folder, or nothing is left.
    """
    jobs = load_trace_jobs(folder)
    names = {name for job in jobs for name in (job.app, job.source)}
    for name in exclude:
        if name not in names:
            raise ConfigError(
                f"nothing in the folder is named {name!r}",
                file=str(folder),
                hint=f"there are {', '.join(sorted(names))}",
            )
    return _without(jobs, exclude, folder)


def _without(jobs: Sequence[TraceJob], names: Sequence[str], folder: Path) -> list[TraceJob]:
    left = [job for job in jobs if job.app not in names and job.source not in names]
    if not left:
        raise ConfigError("no job is left", file=str(folder), hint="exclude less")
    return left


def run_training(run: TrainingRun) -> dict[str, Any]:
    """Train and save; returns what was done."""
    started = time.perf_counter()
    jobs = load_jobs(run.stages, run.exclude)
    if run.licensed_only:
        jobs = _without(jobs, NOT_SHIPPABLE, run.stages)
    router = train_router(run.routing) if run.routing else None
    model = dated(train_model(jobs, run.config, router=router))
    digest = artifact.save_artifact(model, run.out)
    return {
        "path": str(run.out),
        "digest": digest,
        "bytes": run.out.stat().st_size,
        "stages": model.about["stages"],
        "jobs": model.about["jobs"],
        "sources": model.about["sources"],
        "seconds": round(time.perf_counter() - started, 1),
    }
