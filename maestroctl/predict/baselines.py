"""The papers' baselines under one interface: rows of the training stages in, tokens out.

========== ==========================================================================
linear     least squares of output tokens on prompt tokens
median     median per (workflow, role), then per role, then overall
magnus     random forest on compressed semantic features of application text and user text
           and the user's length (our encoder stands in for the paper's own)
magnus_log the same on log lengths, as our median head is fitted
bert_mlp   multi-layer perceptron on the text embedding
mlp_tool   three-layer perceptron classifier for the tool flag, on the whole row
========== ==========================================================================
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.features import FeatureSchema
from maestroctl.predict.gbm import DoubleArray
from maestroctl.predict.stage_input import StageInput

LengthBaseline = Callable[[FloatArray, Sequence[StageInput]], DoubleArray]
"""(rows, stages) -> predicted output tokens."""

_MAX_MLP_ROWS = 20_000
_MIN_MLP_ROWS = 20
"""A tenth is held out to stop early, and every class must be in it."""


def fit_linear(
    rows: FloatArray, stages: Sequence[StageInput], tokens: DoubleArray, schema: FeatureSchema
) -> LengthBaseline:
    """Output length as a line in the prompt length."""
    del rows, schema
    prompt = np.array([stage.prompt_tokens for stage in stages], dtype=np.float64)
    design = np.column_stack([np.ones_like(prompt), prompt])
    weights, *_ = np.linalg.lstsq(design, tokens, rcond=None)

    def predict(_rows: FloatArray, asked: Sequence[StageInput]) -> DoubleArray:
        lengths = np.array([stage.prompt_tokens for stage in asked], dtype=np.float64)
        return np.asarray(np.maximum(0.0, weights[0] + weights[1] * lengths))

    return predict


def fit_median(
    rows: FloatArray, stages: Sequence[StageInput], tokens: DoubleArray, schema: FeatureSchema
) -> LengthBaseline:
    """The running profile's offline twin."""
    del rows, schema
    groups: dict[tuple[str, ...], list[float]] = {}
    for stage, length in zip(stages, tokens, strict=True):
        for key in ((stage.workflow, stage.role), (stage.role,), ()):
            groups.setdefault(key, []).append(float(length))
    medians = {key: float(np.median(values)) for key, values in groups.items()}

    def predict(_rows: FloatArray, asked: Sequence[StageInput]) -> DoubleArray:
        found = [
            medians.get((s.workflow, s.role), medians.get((s.role,), medians[()])) for s in asked
        ]
        return np.array(found)

    return predict


def fit_magnus(
    rows: FloatArray, stages: Sequence[StageInput], tokens: DoubleArray, schema: FeatureSchema
) -> LengthBaseline:
    """Magnus: a request's instruction and user input decide; nothing of the job is known."""
    from sklearn.ensemble import RandomForestRegressor

    columns = [*_text_columns(schema), schema.names.index("workflow")]

    def features(asked_rows: FloatArray, asked: Sequence[StageInput]) -> FloatArray:
        length = np.array([[math.log1p(s.user_tokens)] for s in asked], dtype=np.float32)
        return np.concatenate([_clean(asked_rows[:, columns]), length], axis=1)

    forest = RandomForestRegressor(
        n_estimators=40,
        min_samples_leaf=5,
        max_features=0.5,
        max_samples=min(20_000, len(rows)),
        random_state=0,
    )
    forest.fit(features(rows, stages), tokens)
    return lambda asked_rows, asked: np.asarray(forest.predict(features(asked_rows, asked)))


def fit_magnus_log(
    rows: FloatArray, stages: Sequence[StageInput], tokens: DoubleArray, schema: FeatureSchema
) -> LengthBaseline:
    """Magnus on log(1 + L): nearer to a median, which is what the mean absolute error rewards."""
    on_logs = fit_magnus(rows, stages, np.log1p(tokens), schema)
    return lambda asked_rows, asked: np.expm1(on_logs(asked_rows, asked))


def fit_bert_mlp(
    rows: FloatArray, stages: Sequence[StageInput], tokens: DoubleArray, schema: FeatureSchema
) -> LengthBaseline:
    """An MLP on the text embedding, on log lengths; the median where there is nothing to fit."""
    from sklearn.neural_network import MLPRegressor

    columns = _text_columns(schema)
    if not columns or len(rows) < _MIN_MLP_ROWS:
        return fit_median(rows, stages, tokens, schema)
    network = MLPRegressor(
        hidden_layer_sizes=(64, 32), max_iter=15, early_stopping=True, random_state=0
    )
    _fit_quietly(network, rows[:, columns], np.log1p(tokens))

    def predict(asked_rows: FloatArray, _asked: Sequence[StageInput]) -> DoubleArray:
        return np.asarray(np.expm1(np.clip(network.predict(asked_rows[:, columns]), 0.0, 12.0)))

    return predict


def fit_mlp_tool(rows: FloatArray, called: DoubleArray) -> Callable[[FloatArray], DoubleArray]:
    """Three-layer perceptron for the tool flag: probability per row.

    Where a class is too rare to fit one, the rate of the training rows.
    """
    if min(np.count_nonzero(called), np.count_nonzero(called == 0)) < _MIN_MLP_ROWS:
        rate = float(called.mean()) if called.size else 0.5
        return lambda asked: np.full(len(asked), rate)
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = make_pipeline(
        StandardScaler(),
        MLPClassifier(
            hidden_layer_sizes=(64, 32, 16), max_iter=15, early_stopping=True, random_state=0
        ),
    )
    _fit_quietly(network, _clean(rows), called)
    return lambda asked: np.asarray(network.predict_proba(_clean(asked))[:, 1])


LENGTH_BASELINES: dict[
    str,
    Callable[[FloatArray, Sequence[StageInput], DoubleArray, FeatureSchema], LengthBaseline],
] = {
    "linear": fit_linear,
    "median": fit_median,
    "magnus": fit_magnus,
    "magnus_log": fit_magnus_log,
    "bert_mlp": fit_bert_mlp,
}


def _text_columns(schema: FeatureSchema) -> list[int]:
    first = schema.category_columns[-1] + 1
    return list(range(first, schema.width))


def _clean(rows: FloatArray) -> FloatArray:
    return np.nan_to_num(rows, nan=-1.0)


def _fit_quietly(network: Any, rows: FloatArray, target: DoubleArray) -> None:
    chosen = np.random.default_rng(0).permutation(len(rows))[:_MAX_MLP_ROWS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a short, fixed number of epochs is meant
        network.fit(rows[chosen], target[chosen])
