"""Phase two of Maestro's predictor: output tokens of a stage.

LightGBM regressors on transformed lengths, with the calibrated p_tool as a continuous feature:

========= ========================== ==================================================
head      target, loss               use
========= ========================== ==================================================
paper     log(1 + L), squared        Maestro's form: expm1 of the mean log
mean      sqrt(L), squared           expected tokens; the residual variance is added back
q50       log(1 + L), absolute       order; MAE is judged on it
q90       log(1 + L), pinball 0.9    admission; held to its coverage by a conformal offset
========= ========================== ==================================================

Departures: the paper fits one regressor per role. Here the role is a category of one pooled
regressor, which the trees split where data suffices; the table of ingredients in
`docs/prediction.md` has a row with one regressor per (application, role) (`role_regressors`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.gbm import DoubleArray, Gbm, GbmParams, fit_gbm

HEADS: Mapping[str, GbmParams] = {
    "paper": GbmParams("l2", rounds=250),
    "mean": GbmParams("l2", rounds=250),
    "q50": GbmParams("l1", rounds=300),
    "q90": GbmParams("quantile", rounds=300, alpha=0.9, num_leaves=31),
}
COVERAGE = 0.9
"""Level of the quantile that admission books."""

_MIN_ROWS_FOR_OWN_OFFSET = 300
_MAX_LOG = math.log1p(10**7)


@dataclass(frozen=True, slots=True)
class LengthFigures:
    """Predicted output tokens of a batch, each (num_rows,)."""

    paper: DoubleArray
    mean: DoubleArray
    q50: DoubleArray
    q90: DoubleArray


class OutputLengthModel:
    """The fitted heads.

    Args:
        heads: by name of the table above.
        mean_variance: residual variance of sqrt(L), added back by the ``mean`` head.
        offsets: conformal shift of log q90 by workflow; ``""`` is for every other workflow.
    """

    def __init__(
        self, heads: Mapping[str, Gbm], mean_variance: float, offsets: Mapping[str, float]
    ) -> None:
        self.heads = dict(heads)
        self.mean_variance = mean_variance
        self.offsets = dict(offsets)

    def predict_quantiles(
        self, rows: FloatArray, p_tool: DoubleArray, workflows: Sequence[str]
    ) -> tuple[DoubleArray, DoubleArray]:
        """The figures decisions use: (q50, q90) in tokens, 0 <= q50 <= q90."""
        full = with_p_tool(rows, p_tool)
        low = np.clip(self.heads["q50"].predict(full), 0.0, _MAX_LOG)
        high = np.clip(self.heads["q90"].predict(full) + self._shift(workflows), 0.0, _MAX_LOG)
        return np.expm1(low), np.expm1(np.maximum(low, high))

    def predict(
        self, rows: FloatArray, p_tool: DoubleArray, workflows: Sequence[str]
    ) -> LengthFigures:
        """Every head, for reports."""
        full = with_p_tool(rows, p_tool)
        q50, q90 = self.predict_quantiles(rows, p_tool, workflows)
        root = np.maximum(self.heads["mean"].predict(full), 0.0)
        paper = np.expm1(np.clip(self.heads["paper"].predict(full), 0.0, _MAX_LOG))
        return LengthFigures(paper, root * root + self.mean_variance, q50, q90)

    def _shift(self, workflows: Sequence[str]) -> DoubleArray:
        other = self.offsets[""]
        return np.array([self.offsets.get(workflow, other) for workflow in workflows])


def with_p_tool(rows: FloatArray, p_tool: DoubleArray) -> FloatArray:
    """The rows as the length heads read them: p_tool is the last column."""
    return np.concatenate([rows, p_tool[:, None].astype(np.float32)], axis=1)


def fit_output_length(
    rows: FloatArray,
    tokens: DoubleArray,
    p_tool: DoubleArray,
    workflows: Sequence[str],
    folds: npt.NDArray[np.int64],
    *,
    categories: Sequence[int],
    params: Mapping[str, GbmParams] = HEADS,
    num_threads: int = 2,
) -> OutputLengthModel:
    """Fit every head, and the conformal offsets on out-of-fold quantiles.

    Args:
        tokens: output tokens; NaN = not known.
        p_tool: out-of-fold probability of each row.
        folds: fold of each row's task; one fold for all = no conformal offset, which a local
            refit does not need because `recalibration` holds its coverage.
        params: heads to fit; at least q50 and q90.
    """
    known = ~np.isnan(tokens)
    full = with_p_tool(rows, p_tool)[known]
    length = tokens[known]
    targets = {
        "paper": np.log1p(length),
        "mean": np.sqrt(length),
        "q50": np.log1p(length),
        "q90": np.log1p(length),
    }

    def fit(head: str, chosen: npt.NDArray[np.bool_]) -> Gbm:
        return fit_gbm(
            params[head],
            full[chosen],
            targets[head][chosen],
            categories=categories,
            num_threads=num_threads,
        )

    everything = np.ones(len(full), dtype=np.bool_)
    heads = {head: fit(head, everything) for head in params}
    high = np.full(len(full), np.nan)
    root = np.full(len(full), np.nan)
    known_folds = folds[known]
    for fold in np.unique(known_folds):
        outside = known_folds == fold
        if not outside.all():
            high[outside] = fit("q90", ~outside).predict(full[outside])
            if "mean" in params and fold == known_folds.min():
                root[outside] = fit("mean", ~outside).predict(full[outside])
    scored = ~np.isnan(high)
    known_workflows = [w for w, keep in zip(workflows, known, strict=True) if keep]
    offsets = _conformal_offsets(
        (targets["q90"] - high)[scored],
        [w for w, keep in zip(known_workflows, scored, strict=True) if keep],
    )
    error = (targets["mean"] - np.maximum(root, 0.0))[scored]
    variance = float(np.nanmean(error * error)) if np.isfinite(error).any() else 0.0
    return OutputLengthModel(heads, variance, offsets)


def _conformal_offsets(scores: DoubleArray, workflows: Sequence[str]) -> dict[str, float]:
    """Split-conformal shift of log q90: pooled, and per workflow where rows suffice."""
    offsets = {"": _upper_quantile(scores)}
    names = np.array(workflows)
    for name in sorted(set(workflows)):
        own = scores[names == name]
        if len(own) >= _MIN_ROWS_FOR_OWN_OFFSET:
            offsets[name] = _upper_quantile(own)
    return offsets


def _upper_quantile(scores: DoubleArray) -> float:
    if scores.size == 0:
        return 0.0
    level = min(1.0, COVERAGE * (1 + 1 / len(scores)))
    return float(np.quantile(scores, level))
