"""Refit from this fleet's own history: fit in the background, swap in only if better.

The candidate is fitted on the older jobs and judged on the newest ones, against what was told when
those jobs ran. Only a candidate with a smaller error is fitted again on everything and returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from maestroctl.predict.embedding import TextEncoder
from maestroctl.predict.gbm import DoubleArray
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.own_history import OwnHistory
from maestroctl.predict.stage_table import make_table
from maestroctl.predict.traces import TraceJob
from maestroctl.predict.train import TrainConfig, local_config, train_model

MIN_STAGES = 40
_NEWEST_SHARE = 0.25
_MAX_JOBS = 1500


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean absolute error of the median on the newest jobs, tokens.

    Attributes:
        stages: judged, all with a known output length.
        told: error of what was told when they ran. refitted: of the candidate.
    """

    stages: int
    told: float
    refitted: float


@dataclass(frozen=True, slots=True)
class RefitResult:
    """What a refit came to.

    Attributes:
        model: None = what is in use stays.
        compared: None = too few stages to fit or to judge by.
        stages: those with a known output length.
    """

    model: PredictorModel | None
    compared: Comparison | None
    jobs: int
    stages: int


def refit_from_history(
    history: OwnHistory, encoder: TextEncoder, config: TrainConfig | None = None
) -> RefitResult:
    """Fit on own history, which holds no text, and keep the model only if it is better."""
    without_text = replace(config or TrainConfig(), reads_text=False)
    return refit_if_better(history.jobs, history.told_q50, encoder, without_text)


def refit_if_better(
    jobs: Sequence[TraceJob],
    told_q50: Sequence[Sequence[float]],
    encoder: TextEncoder | None,
    config: TrainConfig | None = None,
) -> RefitResult:
    """Fit a local model on own history; the result has none when it would not be better.

    Args:
        jobs: ended jobs, oldest first; the newest `_MAX_JOBS` are used.
        told_q50: per job and stage, the median that was told when it ran.
        encoder: of the model in use, so that both share one window cache; None = fit one too.
        config: threads and text settings; the rest is `local_config`.
    """
    jobs, told = list(jobs[-_MAX_JOBS:]), list(told_q50[-_MAX_JOBS:])
    num_known = sum(stage.output_tokens is not None for job in jobs for stage in job.stages)
    newest = max(2, int(len(jobs) * _NEWEST_SHARE))
    older, judged = jobs[:-newest], jobs[-newest:]
    if sum(stage.output_tokens is not None for job in older for stage in job.stages) < MIN_STAGES:
        return RefitResult(None, None, len(jobs), num_known)
    own = local_config(config)
    candidate = train_model(older, own, encoder=encoder)
    said = predict_medians(candidate, judged)
    seen = make_table(judged).tokens
    before = np.array([value for job in told[-newest:] for value in job])
    known = ~np.isnan(seen)
    if not known.any():
        return RefitResult(None, None, len(jobs), num_known)
    compared = Comparison(
        int(np.count_nonzero(known)), _error(seen, before, known), _error(seen, said, known)
    )
    is_better = compared.refitted < compared.told
    model = train_model(jobs, own, encoder=encoder) if is_better else None
    return RefitResult(model, compared, len(jobs), num_known)


def predict_medians(model: PredictorModel, jobs: Sequence[TraceJob]) -> DoubleArray:
    """Median output of each stage under the model that served it, in order."""
    table = make_table(jobs)
    rows = model.builder.matrix(table.stages)
    p_tool = model.p_tool(rows, table.stages)
    return model.length.predict_quantiles(rows, p_tool, table.workflows)[0]


def _error(
    seen: DoubleArray, said: DoubleArray, known: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> float:
    return float(np.mean(np.abs(seen[known] - said[known])))
