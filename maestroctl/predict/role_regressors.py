"""Maestro's form of phase two, for comparison: one regressor per role where data suffices.

The groups are (application, role); rows of a group with fewer training rows than `MIN_ROWS`, and of
one never seen, keep what the pooled heads say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from maestroctl.predict import output_length
from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.gbm import DoubleArray, fit_gbm
from maestroctl.predict.output_length import LengthFigures
from maestroctl.predict.stage_input import StageInput

MIN_ROWS = 500


def predict_per_role(
    pooled: LengthFigures,
    train: tuple[FloatArray, DoubleArray, Sequence[StageInput]],
    asked: tuple[FloatArray, Sequence[StageInput]],
    *,
    categories: Sequence[int],
    num_threads: int = 1,
) -> LengthFigures:
    """The pooled figures with those of each large group replaced; q90 stays pooled.

    Args:
        train: rows with p_tool as their last column, output tokens (NaN = unknown), stages.
        asked: rows to predict, of the same columns, and their stages.
    """
    rows, tokens, stages = train
    groups, asked_groups = _groups(stages), _groups(asked[1])
    said = {"paper": pooled.paper.copy(), "mean": pooled.mean.copy(), "q50": pooled.q50.copy()}
    for group in sorted(set(asked_groups.tolist())):
        own = (groups == group) & ~np.isnan(tokens)
        if np.count_nonzero(own) < MIN_ROWS:
            continue
        rows_at = asked_groups == group
        for head, out in said.items():
            # The paper's regressors are for each role; the mean is fitted on tokens themselves,
            # which needs no variance added back.
            target = tokens[own] if head == "mean" else np.log1p(tokens[own])
            params = replace(output_length.HEADS[head], num_leaves=31)
            fitted = fit_gbm(
                params, rows[own], target, categories=categories, num_threads=num_threads
            )
            value = np.maximum(fitted.predict(asked[0][rows_at]), 0.0)
            out[rows_at] = value if head == "mean" else np.expm1(np.minimum(value, 16.0))
    return LengthFigures(said["paper"], said["mean"], said["q50"], pooled.q90)


def _groups(stages: Sequence[StageInput]) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    return np.array([f"{stage.workflow}/{stage.role}" for stage in stages])
