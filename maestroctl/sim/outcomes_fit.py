"""Fits `sim.outcomes` to a folder of tables.

    python -m maestroctl.sim.outcomes_fit DATA OUT TABLE=MODEL,MODEL ...

All correlations are of normal scores. With r the part of the models' outcome scores that they
share, found by matching how often two models are both right:

    length to difficulty      biserial correlation of length and wrong answer, over sqrt(r)
    confidence to difficulty  the same of confidence and right answer
    shares of the rest        from the mean correlation between two models
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from statistics import NormalDist, fmean, pstdev
from typing import Any

from maestroctl.predict.answered_query import AnsweredQuery

_NORMAL = NormalDist()
_STEPS = 40
_GRID = [(_NORMAL.inv_cdf((k + 0.5) / 200), 1 / 200) for k in range(200)]
"""Points of equal weight of the common factor."""


def fit_table(queries: Sequence[AnsweredQuery], models: Sequence[str]) -> dict[str, Any]:
    """Parameters of one table, ready for JSON."""
    right = {m: [query.correct[m] for query in queries] for m in models}
    tokens = {m: [float(query.output_tokens[m]) for query in queries] for m in models}
    said = {m: [query.confidence[m] for query in queries] for m in models}
    share = _outcome_share(right)
    root = math.sqrt(share) or 1.0
    longer = fmean(-_biserial(_scores(tokens[m]), right[m]) for m in models) / root
    surer = fmean(_biserial(_scores(said[m]), right[m]) for m in models) / root
    longer, surer = (min(0.95, max(0.0, value)) for value in (longer, surer))
    return {
        "questions": len(queries),
        "outcome_share": round(share, 4),
        "length_difficulty": round(longer, 4),
        "length_share": round(_rest_share(tokens, longer), 4),
        "confidence_difficulty": round(surer, 4),
        "confidence_share": round(_rest_share(said, surer), 4),
        "question_tokens": _quantiles([float(q.question_tokens) for q in queries]),
        "models": {
            m: {
                "accuracy": round(fmean(right[m]), 4),
                "output_tokens": _quantiles(tokens[m]),
                "confidence": _quantiles(said[m], 4),
            }
            for m in models
        },
    }


def _outcome_share(right: dict[str, list[float]]) -> float:
    """r at which two models are both right as often as they were, by bisection."""
    pairs = list(combinations(right, 2))
    both = fmean(fmean(a * b for a, b in zip(right[x], right[y], strict=True)) for x, y in pairs)
    bars = {m: _NORMAL.inv_cdf(min(0.999, max(0.001, fmean(right[m])))) for m in right}

    def expected(share: float) -> float:
        return fmean(
            sum(w * _below(bars[x], share, g) * _below(bars[y], share, g) for g, w in _GRID)
            for x, y in pairs
        )

    return _bisect(lambda share: expected(share) - both)


def _below(bar: float, share: float, g: float) -> float:
    return _NORMAL.cdf((bar - math.sqrt(share) * g) / math.sqrt(1.0 - share))


def _bisect(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 0.99
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def _scores(values: Sequence[float]) -> list[float]:
    """Normal scores by rank; ties share theirs."""
    order = sorted(values)
    first: dict[float, int] = {}
    last: dict[float, int] = {}
    for place, value in enumerate(order):
        first.setdefault(value, place)
        last[value] = place
    n = len(values)
    return [_NORMAL.inv_cdf(((first[v] + last[v]) / 2 + 0.5) / n) for v in values]


def _biserial(scores: Sequence[float], labels: Sequence[float]) -> float:
    """Correlation of the scores with the normal variable behind a 0/1 label."""
    rate = fmean(labels)
    if not 0.0 < rate < 1.0:
        return 0.0
    point = _correlation(scores, labels)
    return point * math.sqrt(rate * (1 - rate)) / _NORMAL.pdf(_NORMAL.inv_cdf(rate))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    spread = pstdev(first) * pstdev(second)
    if spread <= 0.0:
        return 0.0
    mean_a, mean_b = fmean(first), fmean(second)
    return fmean((a - mean_a) * (b - mean_b) for a, b in zip(first, second, strict=True)) / spread


def _rest_share(values: dict[str, list[float]], with_difficulty: float) -> float:
    """What two models' scores share beyond the difficulty."""
    scores = {m: _scores(own) for m, own in values.items()}
    between = fmean(_correlation(scores[x], scores[y]) for x, y in combinations(scores, 2))
    explained = with_difficulty**2
    return min(0.99, max(0.0, (between - explained) / (1.0 - explained)))


def _quantiles(values: Sequence[float], digits: int = 0) -> list[float]:
    order = sorted(values)
    places = [round(step * (len(order) - 1) / _STEPS) for step in range(_STEPS + 1)]
    return [round(order[place], digits) for place in places]


def main(argv: Sequence[str]) -> int:
    """Fit the tables that `frontier` uses."""
    from maestroctl.predict.routing_outcomes import load_answered

    folder, out = Path(argv[0]), Path(argv[1])
    tables = {}
    for argument in argv[2:]:
        dataset, _, names = argument.partition("=")
        models = names.split(",")
        tables[dataset] = fit_table(load_answered(folder / "routing", dataset, models), models)
    out.write_text(json.dumps({"format": 1, "tables": tables}) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
