"""Chimera's confidence router: one independent sigmoid per candidate model.

A head is a calibrated logistic regression on the embedding of what the user asked and on the
question's *difficulty*: one linear score learned over all models at once from how far each
outcome lies from its model's base rate. A model with a few dozen outcomes gets a head on the
difficulty alone. Encoder and difficulty are frozen, so adding a model later needs only that
model's outcomes (`model_addition`), and several models can be confident at once. The paper's own
encoder is in `modernbert`; both answer the same call, `confidence(text, models)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.domain.stage_text import MAX_TAIL_CHARS
from maestroctl.predict.embedding import FloatArray, WindowEmbedder, pool, split_windows
from maestroctl.predict.gbm import DoubleArray
from maestroctl.predict.text_features import count_digits

_FORMS = ((slice(-1, None), 1.0), (slice(None), 0.1), (slice(None), 1.0))
"""Columns and penalty of the heads that are tried: the difficulty alone, and the whole vector."""
_RIDGE = 30.0
_EDGE = 1e-3
MIN_OUTCOMES = 20
"""Fewer outcomes than this, or nearly one class only, give a head on the difficulty alone."""


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """One model's sigmoid.

    Attributes:
        weights: (num_features,); all but the last zero for a head on the difficulty alone.
        bias: with it, sigmoid(weights @ x + bias) is the calibrated probability.
        num_outcomes: rows it was fitted on.
    """

    weights: FloatArray
    bias: float
    num_outcomes: int


class SemanticRouter:
    """Confidence per model for a text.

    Args:
        embedder: windows to vectors; may be shared.
        difficulty: (num_plain_features,) linear score of `plain_vector`; higher = easier.
        heads: by model name.
        ease_slope: what a step of difficulty is worth to a model of which little is known.
    """

    def __init__(
        self,
        embedder: WindowEmbedder,
        difficulty: FloatArray,
        heads: Mapping[str, ConfidenceHead],
        ease_slope: float = 0.0,
    ) -> None:
        self.embedder = embedder
        self.difficulty = difficulty
        self.ease_slope = ease_slope
        self.heads = dict(heads)

    def vector(self, text: str) -> FloatArray:
        """Features of a question: `plain_vector` and its difficulty."""
        plain = self.plain_vector(text)
        return np.append(plain, np.float32(plain @ self.difficulty))

    def with_head(self, model: str, head: ConfidenceHead) -> SemanticRouter:
        """This router with one more head, or another one for a model it knows."""
        heads = {**self.heads, model: head}
        return SemanticRouter(self.embedder, self.difficulty, heads, self.ease_slope)

    def plain_vector(self, text: str) -> FloatArray:
        """Pooled windows at unit length, length of the text, share of digits, a constant."""
        question = text[:MAX_TAIL_CHARS]
        windows = self.embedder.embed_windows(split_windows(question))
        pooled = pool(windows, self.embedder.encoder.dimension)
        length = float(np.linalg.norm(pooled))
        unit = pooled / length if length > 0 else pooled
        digits = count_digits(question) / (len(question) + 1)
        extra = np.array([math.log1p(len(question)) / 8, digits, 1.0], dtype=np.float32)
        return np.concatenate([unit, extra])

    def confidence(self, text: str, models: Iterable[str]) -> dict[str, float]:
        """Probability of a good answer per model; models without a head are left out."""
        known = [model for model in models if model in self.heads]
        if not known:
            return {}
        vector = self.vector(text)
        return {model: _sigmoid(self._logit(model, vector)) for model in known}

    def _logit(self, model: str, vector: FloatArray) -> float:
        head = self.heads[model]
        return float(head.weights @ vector) + head.bias

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
        """Plain values and arrays for an artifact."""
        models = sorted(self.heads)
        heads = [self.heads[model] for model in models]
        plain = {
            "models": models,
            "num_outcomes": [head.num_outcomes for head in heads],
            "ease_slope": self.ease_slope,
        }
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "weights": np.stack([head.weights for head in heads]).astype(np.float32),
            "bias": np.array([head.bias for head in heads]),
            "difficulty": self.difficulty,
        }
        return plain, arrays

    @classmethod
    def from_arrays(
        cls,
        embedder: WindowEmbedder,
        plain: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[np.generic]],
    ) -> SemanticRouter:
        """The inverse of `to_arrays`."""
        heads = {
            model: ConfidenceHead(
                arrays["weights"][place].astype(np.float32), float(arrays["bias"][place]), count
            )
            for place, (model, count) in enumerate(
                zip(plain["models"], plain["num_outcomes"], strict=True)
            )
        }
        difficulty = arrays["difficulty"].astype(np.float32)
        return cls(embedder, difficulty, heads, float(plain["ease_slope"]))


def fit_head(
    vectors: FloatArray,
    outcomes: DoubleArray,
    folds: npt.NDArray[np.int64],
    ease_slope: float = 0.0,
) -> ConfidenceHead:
    """Fit one model's head from that model's outcomes alone.

    Penalty, slope and bias (Platt) are chosen on out-of-fold logits. The head is then drawn
    towards the model's base rate by what its out-of-fold gain over it is worth,

        keep = max(0, 1 - (standard error of the gain / gain) ** 2),

    in log loss per row, so a head that knows nothing says the base rate.

    Args:
        vectors: (num_rows, num_features), from `SemanticRouter.vector`.
        outcomes: (num_rows,) 1 = answered well.
        folds: fold of each row's item.
        ease_slope: of the head on the difficulty alone that a model gets whose outcomes are too
            few, or too alike, to fit or judge anything.
    """
    base = _base_logit(outcomes)
    ease = np.zeros(vectors.shape[1])
    ease[-1] = ease_slope
    middle = float(vectors[:, -1].mean()) if len(vectors) else 0.0
    best = (ease, base - ease_slope * middle)
    minority = min(outcomes.sum(), len(outcomes) - outcomes.sum()) if outcomes.size else 0
    if len(outcomes) < MIN_OUTCOMES or minority < 5:
        return ConfidenceHead(ease.astype(np.float32), best[1], len(outcomes))
    best_losses = _log_losses(vectors @ ease + best[1], outcomes)
    for columns, penalty in _FORMS:
        part = vectors[:, columns]
        logits = _out_of_fold_logits(part, outcomes, folds, penalty)
        slope, shift = _fit_platt(logits, outcomes)
        losses = _log_losses(logits * slope + shift, outcomes)
        if losses.mean() < best_losses.mean():
            weights = np.zeros(vectors.shape[1])
            weights[columns], bias = _fit_logistic(part, outcomes, penalty)
            best_losses, best = losses, (weights * slope, bias * slope + shift)
    nothing = np.zeros((len(outcomes), 0), dtype=np.float32)
    gains = _log_losses(_out_of_fold_logits(nothing, outcomes, folds, 1.0), outcomes) - best_losses
    keep = _worth(gains)
    weights, bias = best[0] * keep, best[1] * keep + base * (1 - keep)
    return ConfidenceHead(weights.astype(np.float32), float(bias), len(outcomes))


def _worth(gains: DoubleArray) -> float:
    """Share of a gain to believe in: 0 when it is inside its own noise, near 1 far outside."""
    mean = float(gains.mean())
    if mean <= 0:
        return 0.0
    noise = float(gains.std(ddof=1)) / math.sqrt(len(gains)) / mean
    return max(0.0, 1 - noise * noise)


def _base_logit(outcomes: DoubleArray) -> float:
    rate = float(np.clip(outcomes.mean(), _EDGE, 1 - _EDGE)) if outcomes.size else 0.5
    return math.log(rate / (1 - rate))


def _fit_logistic(
    vectors: npt.NDArray[np.floating[Any]], outcomes: DoubleArray, penalty: float
) -> tuple[DoubleArray, float]:
    from sklearn.linear_model import LogisticRegression

    if not vectors.shape[1] or outcomes.min() == outcomes.max():
        return np.zeros(vectors.shape[1]), _base_logit(outcomes)
    fitted = LogisticRegression(C=penalty, max_iter=300).fit(vectors, outcomes)
    return np.asarray(fitted.coef_[0], dtype=np.float64), float(fitted.intercept_[0])


def _out_of_fold_logits(
    vectors: FloatArray, outcomes: DoubleArray, folds: npt.NDArray[np.int64], penalty: float
) -> DoubleArray:
    logits = np.zeros(len(outcomes))
    for fold in np.unique(folds):
        outside = folds == fold
        if outside.all():
            continue
        weights, bias = _fit_logistic(vectors[~outside], outcomes[~outside], penalty)
        logits[outside] = vectors[outside] @ weights + bias
    return logits


def _fit_platt(logits: DoubleArray, outcomes: DoubleArray) -> tuple[float, float]:
    weights, bias = _fit_logistic(logits[:, None], outcomes, 100.0)
    # A negative slope would turn the ranking round on noise; the base rate is the better answer.
    return max(0.0, float(weights[0])), bias


def _log_losses(logits: DoubleArray, outcomes: DoubleArray) -> DoubleArray:
    signed = np.where(outcomes > 0.5, logits, -logits)
    return np.asarray(np.logaddexp(0.0, -signed))


def _sigmoid(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, logit))))


def fit_router(
    embedder: WindowEmbedder,
    texts: Sequence[str],
    models: Sequence[str],
    outcomes: Sequence[float],
    folds: Sequence[int],
) -> SemanticRouter:
    """Fit a head per model over parallel rows (text, model, outcome, fold)."""
    place = {text: k for k, text in enumerate(dict.fromkeys(texts))}
    blank = SemanticRouter(embedder, np.zeros(embedder.encoder.dimension + 3, np.float32), {})
    plain = np.stack([blank.plain_vector(text) for text in place])
    rows = np.array([place[text] for text in texts])
    names, labels = np.array(models), np.array(outcomes, dtype=np.float64)
    fold_of_row = np.array(folds, dtype=np.int64)
    surplus = np.zeros(len(labels))
    for model in sorted(set(models)):
        own = names == model
        surplus[own] = labels[own] - labels[own].mean()
    router = SemanticRouter(embedder, _fit_ridge(plain[rows], surplus), {})
    ease = np.zeros(len(labels), dtype=np.float32)
    for fold in np.unique(fold_of_row):
        outside = fold_of_row == fold
        ease[outside] = plain[rows[outside]] @ _fit_ridge(plain[rows[~outside]], surplus[~outside])
    router.ease_slope = _fit_ease_slope(ease, labels, labels - surplus)
    for model in sorted(set(models)):
        own = names == model
        vectors = np.column_stack([plain[rows[own]], ease[own]])
        router.heads[model] = fit_head(vectors, labels[own], fold_of_row[own], router.ease_slope)
    return router


def _fit_ease_slope(ease: FloatArray, labels: DoubleArray, rates: DoubleArray) -> float:
    """Pooled logistic slope of the out-of-fold difficulty beside every model's base rate."""
    clipped = np.clip(rates, _EDGE, 1 - _EDGE)
    both = np.column_stack([ease, np.log(clipped / (1 - clipped))])
    weights, _ = _fit_logistic(both, labels, 100.0)
    return max(0.0, float(weights[0]))


def _fit_ridge(vectors: FloatArray, target: DoubleArray) -> FloatArray:
    if not len(vectors):
        return np.zeros(vectors.shape[1], dtype=np.float32)
    wide = vectors.astype(np.float64)
    gram = wide.T @ wide + _RIDGE * np.eye(wide.shape[1])
    return np.linalg.solve(gram, wide.T @ target).astype(np.float32)
