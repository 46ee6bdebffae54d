"""Phase one of Maestro's predictor: will this stage call a tool?

A LightGBM classifier, calibrated by isotonic regression on out-of-fold scores. The probability
is exactly 0 where no tool can be called and exactly 1 where one must be.

Phase two reads the probability as a feature, so what training rows get is out-of-fold: the score
comes from a classifier that never saw the row's task, and the isotonic map was fitted without the
row's fold. That is not nested: the scores that map was fitted on come from classifiers which saw
the row's fold, since a nested run would take a classifier per pair of folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.gbm import BoolArray, DoubleArray, Gbm, GbmParams, fit_gbm

CLASSIFIER = GbmParams(
    "binary", rounds=200, num_leaves=31, learning_rate=0.06, feature_fraction=0.3
)
_EDGE = 1e-3
"""No calibrated probability is nearer to 0 or 1: one surprise must not cost an infinite loss."""


@dataclass(frozen=True, slots=True)
class IsotonicMap:
    """A monotone piecewise-linear map from raw score to probability.

    Attributes:
        scores, probabilities: the knots, both rising, shape (num_knots,).
    """

    scores: DoubleArray
    probabilities: DoubleArray

    def __call__(self, scores: DoubleArray) -> DoubleArray:
        """Calibrated probabilities, (num_rows,)."""
        return np.interp(scores, self.scores, self.probabilities)


def fit_isotonic(scores: DoubleArray, labels: DoubleArray) -> IsotonicMap:
    """Fit on scores the classifier did not see the labels of."""
    if scores.size == 0 or labels.min() == labels.max():
        rate = float(np.clip(labels.mean() if labels.size else 0.5, _EDGE, 1 - _EDGE))
        return IsotonicMap(np.array([0.0, 1.0]), np.array([rate, rate]))
    fitted = IsotonicRegression(y_min=_EDGE, y_max=1 - _EDGE).fit(scores, labels)
    return IsotonicMap(
        np.asarray(fitted.X_thresholds_, dtype=np.float64),
        np.asarray(fitted.y_thresholds_, dtype=np.float64),
    )


class ToolIntentModel:
    """Classifier and isotonic map; `certain` rows bypass both."""

    def __init__(self, classifier: Gbm, isotonic: IsotonicMap) -> None:
        self.classifier = classifier
        self.isotonic = isotonic

    def predict(self, rows: FloatArray, certain: DoubleArray) -> DoubleArray:
        """p_tool per row.

        Args:
            rows: (num_rows, num_features).
            certain: (num_rows,) 0 or 1 where the answer is known before, NaN where it is open.
        """
        out = certain.copy()
        still_open = np.isnan(certain)
        if still_open.any():
            scores = self.classifier.predict(rows[still_open])
            out[still_open] = self.isotonic(scores)
        return out

    def to_parts(self) -> tuple[dict[str, str], dict[str, npt.NDArray[np.generic]]]:
        """Texts and arrays for an artifact."""
        return (
            {"classifier": self.classifier.text},
            {"scores": self.isotonic.scores, "probabilities": self.isotonic.probabilities},
        )

    @classmethod
    def from_parts(
        cls, texts: Mapping[str, str], arrays: Mapping[str, npt.NDArray[np.generic]]
    ) -> ToolIntentModel:
        """The inverse of `to_parts`."""
        knots = IsotonicMap(
            arrays["scores"].astype(np.float64), arrays["probabilities"].astype(np.float64)
        )
        return cls(Gbm(texts["classifier"]), knots)


@dataclass(frozen=True, slots=True)
class FittedToolIntent:
    """The model for serving, and what phase two may see of the training rows.

    Attributes:
        out_of_fold: p_tool per training row, as the module says, (num_rows,).
    """

    model: ToolIntentModel
    out_of_fold: DoubleArray


def fit_tool_intent(
    rows: FloatArray,
    labels: DoubleArray,
    certain: DoubleArray,
    folds: npt.NDArray[np.int64],
    *,
    categories: Sequence[int],
    params: GbmParams = CLASSIFIER,
    num_threads: int = 2,
) -> FittedToolIntent:
    """Fit classifier, isotonic map and the out-of-fold probabilities.

    Args:
        labels: 1 = called a tool, 0 = did not, NaN = not known.
        certain: as in `ToolIntentModel.predict`.
        folds: fold of each row's task.
    """
    still_open = np.isnan(certain)
    known = still_open & ~np.isnan(labels)
    scores = np.full(len(rows), np.nan)
    for fold in np.unique(folds):
        inside = known & (folds != fold)
        outside = still_open & (folds == fold)
        if inside.any() and outside.any():
            fitted = _fit_classifier(rows, labels, inside, params, categories, num_threads)
            scores[outside] = fitted.predict(rows[outside], num_threads=num_threads)
    out_of_fold = _calibrate_without_own_fold(scores, labels, certain, folds, known)
    scored = known & ~np.isnan(scores)
    isotonic = fit_isotonic(scores[scored], labels[scored])
    classifier = _fit_classifier(rows, labels, known, params, categories, num_threads)
    return FittedToolIntent(ToolIntentModel(classifier, isotonic), out_of_fold)


def _fit_classifier(
    rows: FloatArray,
    labels: DoubleArray,
    chosen: BoolArray,
    params: GbmParams,
    categories: Sequence[int],
    num_threads: int,
) -> Gbm:
    if not chosen.any():
        # No tool anywhere in the training jobs: a constant that a later refit replaces.
        rows, labels, chosen = rows[:2], np.array([0.0, 1.0]), np.array([True, True])
    return fit_gbm(
        params, rows[chosen], labels[chosen], categories=categories, num_threads=num_threads
    )


def _calibrate_without_own_fold(
    scores: DoubleArray,
    labels: DoubleArray,
    certain: DoubleArray,
    folds: npt.NDArray[np.int64],
    known: BoolArray,
) -> DoubleArray:
    out = certain.copy()
    scored = ~np.isnan(scores)
    for fold in np.unique(folds):
        outside = scored & (folds == fold)
        inside = scored & known & (folds != fold)
        if outside.any():
            out[outside] = fit_isotonic(scores[inside], labels[inside])(scores[outside])
    out[np.isnan(out)] = 0.5
    return out
