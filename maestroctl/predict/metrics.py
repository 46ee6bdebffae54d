"""Figures of merit of the predictors: numbers in, plain numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from maestroctl.predict.gbm import BoolArray, DoubleArray

_BINS = 15
_ROUNDING = 1e-9


def length_metrics(
    tokens: DoubleArray, q50: DoubleArray, mean: DoubleArray, paper: DoubleArray
) -> dict[str, Any]:
    """MAE on the median head, RMSE and R² on the mean head, R² of the log on the log-mean head.

    ``paper_form`` holds the same figures of the papers' single form, expm1 of the mean log.
    """
    return {
        "mae": mean_absolute(tokens, q50),
        "rmse": float(np.sqrt(np.mean((tokens - mean) ** 2))) if tokens.size else None,
        "r2": r_squared(tokens, mean),
        "r2_log": r_squared(np.log1p(tokens), np.log1p(np.maximum(paper, 0.0))),
        "rows": len(tokens),
        "paper_form": {"mae": mean_absolute(tokens, paper), "r2": r_squared(tokens, paper)},
    }


def mean_absolute(seen: DoubleArray, said: DoubleArray) -> float | None:
    """Mean absolute error; None without rows."""
    return float(np.mean(np.abs(seen - said))) if seen.size else None


def r_squared(seen: DoubleArray, said: DoubleArray) -> float | None:
    """Share of the variance explained; None where there is none beyond rounding."""
    if seen.size < 2 or np.ptp(seen) <= _ROUNDING * np.abs(seen).max():
        return None
    spread = float(np.sum((seen - seen.mean()) ** 2))
    return float(1 - np.sum((seen - said) ** 2) / spread)


def tool_metrics(called: DoubleArray, p_tool: DoubleArray) -> dict[str, Any]:
    """F1, accuracy, log loss, Brier score and expected calibration error."""
    if not called.size:
        return dict.fromkeys(("f1", "accuracy", "log_loss", "brier", "ece")) | {"rows": 0}
    truth, guess = called > 0.5, p_tool > 0.5
    hits = int(np.sum(truth & guess))
    wrong = int(np.sum(truth != guess))
    chance = np.clip(p_tool, 1e-7, 1 - 1e-7)
    loss = -np.mean(np.where(truth, np.log(chance), np.log(1 - chance)))
    return {
        "f1": 2 * hits / (2 * hits + wrong) if hits + wrong else None,
        "accuracy": float(np.mean(truth == guess)),
        "log_loss": float(loss),
        "brier": float(np.mean((p_tool - called) ** 2)),
        "ece": calibration_error(called, p_tool),
        "rows": len(called),
    }


def calibration_bins(called: DoubleArray, p_tool: DoubleArray) -> list[dict[str, float]]:
    """Per filled bin of equal width: mean said, mean seen, rows."""
    places = np.minimum((p_tool * _BINS).astype(np.int64), _BINS - 1)
    out = []
    for place in range(_BINS):
        inside = places == place
        if inside.any():
            out.append(
                {
                    "said": float(p_tool[inside].mean()),
                    "seen": float(called[inside].mean()),
                    "rows": float(inside.sum()),
                }
            )
    return out


def calibration_error(called: DoubleArray, p_tool: DoubleArray) -> float:
    """Expected calibration error over equal-width bins."""
    bins = calibration_bins(called, p_tool)
    return sum(b["rows"] * abs(b["said"] - b["seen"]) for b in bins) / max(1, len(called))


def total_metrics(
    remaining: DoubleArray, said: DoubleArray, admission: BoolArray
) -> dict[str, Any]:
    """Kendall's tau over all stages and over first stages, and MAE."""
    return {
        "kendall_tau": kendall_tau(remaining, said),
        "kendall_tau_admission": kendall_tau(remaining[admission], said[admission]),
        "mae": mean_absolute(remaining, said),
        "rows": len(remaining),
    }


def kendall_tau(seen: DoubleArray, said: DoubleArray) -> float | None:
    """Kendall's tau-b; None where it is not defined."""
    from scipy.stats import kendalltau

    if seen.size < 2:
        return None
    value = float(kendalltau(seen, said).statistic)
    return None if np.isnan(value) else value


def coverage(tokens: DoubleArray, q90: DoubleArray) -> float | None:
    """Share of stages that stayed within the booked quantile."""
    return float(np.mean(tokens <= q90)) if tokens.size else None


def bootstrap_interval(
    groups: npt.NDArray[Any],
    measure: Callable[[npt.NDArray[np.int64]], float | None],
    *,
    rounds: int = 200,
    seed: int = 0,
) -> tuple[float, float] | None:
    """95 % interval of `measure` over resampled groups (tasks).

    Args:
        groups: task of each row.
        measure: figure over the rows of the given numbers.
    """
    _, place = np.unique(groups, return_inverse=True)
    num_groups = int(place.max()) + 1 if len(place) else 0
    if num_groups < 2:
        return None
    order = np.argsort(place, kind="stable")
    bounds = np.searchsorted(place[order], np.arange(num_groups + 1))
    rows_of = [order[bounds[k] : bounds[k + 1]] for k in range(num_groups)]
    rng = np.random.default_rng(seed)
    values: list[float] = []
    for _ in range(rounds):
        drawn = rng.integers(0, num_groups, num_groups)
        value = measure(np.concatenate([rows_of[k] for k in drawn]))
        if value is not None:
            values.append(value)
    if not values:
        return None
    return float(np.percentile(values, 2.5)), float(np.percentile(values, 97.5))


def area_under_curve(outcomes: DoubleArray, chance: DoubleArray) -> float | None:
    """ROC AUC; None with one class only. Ties count half."""
    from scipy.stats import rankdata

    positives = int(np.sum(outcomes > 0.5))
    negatives = len(outcomes) - positives
    if not positives or not negatives:
        return None
    ranks = rankdata(chance)
    below = float(ranks[outcomes > 0.5].sum()) - positives * (positives + 1) / 2
    return below / (positives * negatives)


def quantile_of(values: Sequence[float], level: float) -> float:
    """Linear quantile of a non-empty list."""
    return float(np.quantile(np.array(values), level))
