"""The one seam to LightGBM: fit, predict, and its own text format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from maestroctl.errors import SchemaMismatch
from maestroctl.predict.embedding import FloatArray

DoubleArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_BASE: Mapping[str, Any] = {
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "feature_fraction": 0.4,
    "force_row_wise": True,
    "lambda_l2": 1.0,
    "max_bin": 127,
    "seed": 1,
    "verbose": -1,
}
"""Shared by every head; chosen by task-level folds inside the training traces."""


@dataclass(frozen=True, slots=True)
class GbmParams:
    """What differs between heads.

    Attributes:
        objective: LightGBM's name; `alpha` is the level of ``quantile``.
        rounds: trees.
    """

    objective: str
    rounds: int = 300
    num_leaves: int = 63
    learning_rate: float = 0.07
    min_data_in_leaf: int = 30
    alpha: float | None = None
    feature_fraction: float | None = None

    def to_lightgbm(self, num_threads: int) -> dict[str, Any]:
        """As LightGBM's parameter dictionary."""
        params = dict(_BASE)
        params.update(
            objective=self.objective,
            num_leaves=self.num_leaves,
            learning_rate=self.learning_rate,
            min_data_in_leaf=self.min_data_in_leaf,
            num_threads=num_threads,
        )
        if self.alpha is not None:
            params["alpha"] = self.alpha
        if self.feature_fraction is not None:
            params["feature_fraction"] = self.feature_fraction
        return params


class Gbm:
    """A fitted head, remembered as the text an artifact keeps.

    The booster is always read back from its text, so that the model in memory after training and
    the model loaded from an artifact give the same bits.
    """

    def __init__(self, text: str) -> None:
        try:
            self._booster = lgb.Booster(model_str=text)
        except (lgb.basic.LightGBMError, ValueError) as exc:
            raise SchemaMismatch(f"not a LightGBM model: {exc}") from exc
        self.text = text

    @property
    def num_features(self) -> int:
        """Columns the head expects."""
        return int(self._booster.num_feature())

    def predict(self, rows: FloatArray, *, num_threads: int = 1) -> DoubleArray:
        """Scores, (num_rows,)."""
        values = self._booster.predict(rows, num_threads=num_threads)
        return np.asarray(values, dtype=np.float64)

    def contributions(self, rows: FloatArray) -> DoubleArray:
        """What each column adds to the score (SHAP), (num_rows, num_features + 1); last = base."""
        return np.asarray(self._booster.predict(rows, pred_contrib=True), dtype=np.float64)


def fit_gbm(
    params: GbmParams,
    rows: FloatArray,
    target: npt.NDArray[np.floating[Any]],
    *,
    categories: Sequence[int] = (),
    num_threads: int = 2,
) -> Gbm:
    """Fit one head; a single row gives a constant.

    Args:
        rows: (num_rows, num_features), at least one row.
        target: (num_rows,), no NaN.
        categories: columns that hold codes.
    """
    if len(rows) == 1:  # bagging would draw none of it
        rows, target = np.repeat(rows, 2, axis=0), np.repeat(target, 2)
    data = lgb.Dataset(rows, target, categorical_feature=list(categories), params={"verbose": -1})
    booster = lgb.train(params.to_lightgbm(num_threads), data, params.rounds)
    return Gbm(booster.model_to_string())
