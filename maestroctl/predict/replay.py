"""Replays an application as a stream of jobs: what a fleet that has never seen it would learn.

Each stage is told from what was known before it, then its outcome is observed; the remaining
totals are observed when the job ends. A refit on own history is tried after 10, 25, 50, 100, 200
jobs and so on, as the background trainer would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from maestroctl.predict.annotate import Annotation, annotate, learn, learn_total
from maestroctl.predict.gbm import BoolArray, DoubleArray
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.raw_prediction import LOCAL, CandidateFigures, RawPrediction
from maestroctl.predict.recalibration import Observation, OnlineState
from maestroctl.predict.refit import refit_if_better
from maestroctl.predict.stage_table import StageTable, make_table
from maestroctl.predict.traces import TraceJob, TraceStage
from maestroctl.predict.train import TrainConfig

REFIT_AFTER = (10, 25, 50, 100, 200, 400, 800, 1600)


@dataclass(frozen=True, slots=True)
class ReplayedStream:
    """Parallel columns over the stages of a replay.

    Attributes:
        jobs_before: jobs that had ended when the stage ran.
        q50, q90, total: what was told.
        raw_q50: what the untouched base model said; NaN without one.
    """

    table: StageTable
    jobs_before: DoubleArray
    q50: DoubleArray
    q90: DoubleArray
    total: DoubleArray
    raw_q50: DoubleArray
    refits: int


def replay_stream(
    base: PredictorModel | None,
    jobs: Sequence[TraceJob],
    state: OnlineState,
    config: TrainConfig | None = None,
) -> ReplayedStream:
    """Run one application's jobs through online learning, in order.

    Args:
        base: trained elsewhere; None = start from nothing, with running figures and own refits.
    """
    encoder = None if base is None else base.builder.embedder.encoder
    said_by_base = None if base is None else predict_batched(base, make_table(jobs))
    local: PredictorModel | None = None
    told: list[list[Annotation]] = []
    refits = 0
    for start, end in _segments(len(jobs)):
        if start:
            medians = [[a.prediction.output_q50 for a in job] for job in told]
            better = refit_if_better(jobs[:start], medians, encoder, config).model
            if better is not None:
                local, refits = better, refits + 1
                state.keep_experts(("model", "profile"))
        part = jobs[start:end]
        said_by_local = None if local is None else predict_batched(local, make_table(part))
        for place, job in enumerate(part):
            said: list[dict[str, RawPrediction]] = [{} for _ in job.stages]
            if said_by_base is not None:
                _add(said, "model", said_by_base[start + place])
            if said_by_local is not None:
                _add(said, LOCAL, said_by_local[place])
            told.append(_run_job(job, said, state))
    return _collect(jobs, told, refits)


def _add(
    said: Sequence[dict[str, RawPrediction]], expert: str, raws: Sequence[RawPrediction]
) -> None:
    for by_expert, raw in zip(said, raws, strict=True):
        by_expert[expert] = raw


def _segments(num_jobs: int) -> Iterator[tuple[int, int]]:
    cuts = [0, *(n for n in REFIT_AFTER if n < num_jobs), num_jobs]
    yield from pairwise(cuts)


def _run_job(
    job: TraceJob, said: Sequence[dict[str, RawPrediction]], state: OnlineState
) -> list[Annotation]:
    annotations = []
    for stage, experts in zip(job.stages, said, strict=True):
        annotation = annotate(stage.seen, experts, state)
        annotations.append(annotation)
        if stage.output_tokens is not None:
            learn(annotation, stage.seen.candidates[0], Observation(stage.output_tokens), state)
    for annotation, stage, remaining in zip(
        annotations, job.stages, _remaining(job.stages), strict=True
    ):
        if remaining is not None:
            learn_total(annotation, stage.seen.candidates[0], remaining, state)
    return annotations


def _remaining(stages: Sequence[TraceStage]) -> list[int | None]:
    out: list[int | None] = []
    total: int | None = 0
    for stage in reversed(stages):
        known = total is not None and stage.output_tokens is not None
        total = (total or 0) + (stage.output_tokens or 0) if known else None
        out.append(total)
    return out[::-1]


def predict_batched(model: PredictorModel, table: StageTable) -> list[list[RawPrediction]]:
    """Raw figures per job and stage, in one pass; the same numbers as one stage at a time."""
    if not table.stages:
        return []
    rows = model.builder.matrix(table.stages)
    p_tool = model.p_tool(rows, table.stages)
    q50, q90 = model.length.predict_quantiles(rows, p_tool, table.workflows)
    total = model.total.predict(rows)
    out: list[list[RawPrediction]] = [[] for _ in table.jobs]
    for place, stage in enumerate(table.stages):
        figures = CandidateFigures(float(q50[place]), float(q90[place]), float(total[place]))
        raw = RawPrediction(float(p_tool[place]), {stage.candidates[0]: figures})
        out[int(table.job[place])].append(raw)
    return out


def _collect(
    jobs: Sequence[TraceJob], told: Sequence[Sequence[Annotation]], refits: int
) -> ReplayedStream:
    table = make_table(jobs)
    flat = [annotation for job in told for annotation in job]
    models = [annotation.stage.candidates[0] for annotation in flat]
    return ReplayedStream(
        table=table,
        jobs_before=table.job.astype(np.float64),
        q50=np.array([a.prediction.output_q50 for a in flat]),
        q90=np.array([a.prediction.output_q90 for a in flat]),
        total=np.array([a.told[m].total for a, m in zip(flat, models, strict=True)]),
        raw_q50=np.array([_raw_q50(a, m) for a, m in zip(flat, models, strict=True)]),
        refits=refits,
    )


def _raw_q50(annotation: Annotation, model: str) -> float:
    raw = annotation.said.get("model")
    return np.nan if raw is None else raw.figures[model].q50


def after(stream: ReplayedStream, num_jobs: int) -> BoolArray:
    """Stages with a known length that ran when at least `num_jobs` jobs had ended."""
    return (stream.jobs_before >= num_jobs) & ~np.isnan(stream.table.tokens)
