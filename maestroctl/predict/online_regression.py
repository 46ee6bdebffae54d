"""A linear regression that learns from one stage at a time: recursive least squares, made robust.

Theory of operation
-------------------
With a row x and a target y, both in logs, the prediction is w . x. After each outcome

    r  = y - w . x                          residual
    o  = min(1, HUBER * s / |r|)            s = running mean of |r|: an outlier counts less
    k  = P x / (FORGET / o + x . P x)       gain
    w <- w + k r
    P <- (P - k (P x)') / FORGET            P starts at I / RIDGE

so about the last 1 / (1 - FORGET) stages count. P of a direction that is not seen would grow
without end; forgetting pauses while the trace of P is above its bound. The weights of the Huber
form draw the fit from the mean towards the median, which is what order wants.

`LengthTraits` makes the row. Every length in it is taken relative to an *anchor*, the usual length
of the stage's kind, and what is not known is 0: a fit that knows nothing says the anchor. Standard
library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any

from maestroctl.predict.stage_input import StageInput

FORGET = 0.998
HUBER = 0.4
RIDGE = 2.0
_MOST_VARIANCE = 100.0 / RIDGE
"""Mean of the diagonal of P past which nothing more is forgotten."""
_FARTHEST = 3.0
"""A prediction is at most e**3 times the anchor away from it."""
_NINE_TENTHS = math.log(5.0)
"""0.9 quantile of a Laplace distribution, in mean absolute deviations."""


class OnlineRegression:
    """Weights and their uncertainty. One owner.

    Args:
        weights: of the start, which also fix the number of columns.
    """

    __slots__ = ("_inverse", "count", "scale", "weights")

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = list(weights)
        size = range(len(weights))
        self._inverse = [[1 / RIDGE if a == b else 0.0 for b in size] for a in size]
        self.count = 0
        self.scale = 0.5

    def predict(self, row: Sequence[float]) -> float:
        """Log length relative to the anchor."""
        return max(-_FARTHEST, min(_FARTHEST, _dot(self.weights, row)))

    @property
    def spread(self) -> float:
        """From the median to the 0.9 quantile, in logs, as the residuals so far have it."""
        return self.scale * _NINE_TENTHS

    def learn(self, row: Sequence[float], target: float) -> None:
        """Take in one outcome; O(len(row) ** 2)."""
        residual = target - _dot(self.weights, row)
        share = min(1.0, HUBER * (self.scale + 1e-3) / (abs(residual) + 1e-9))
        self.scale += max(0.02, 1 / (self.count + 2)) * (abs(residual) - self.scale)
        spread = [_dot(line, row) for line in self._inverse]
        trace = sum(line[k] for k, line in enumerate(self._inverse))
        forget = FORGET if trace < _MOST_VARIANCE * len(row) else 1.0
        damp = 1 / (FORGET / share + max(0.0, _dot(spread, row)))
        step = damp * residual
        self.weights = [w + p * step for w, p in zip(self.weights, spread, strict=True)]
        # The product of the two first: it is the same for (a, b) and (b, a), so P stays symmetric
        # to the bit and half of it says all.
        self._inverse = [
            [(value - a * b * damp) / forget for value, b in zip(line, spread)]  # noqa: B905
            for line, a in zip(self._inverse, spread)  # noqa: B905
        ]
        self.count += 1

    def to_json(self) -> list[Any]:
        """Plain values; of the symmetric matrix one half."""
        half = [value for k, line in enumerate(self._inverse) for value in line[k:]]
        return [self.count, self.scale, self.weights, half]

    @classmethod
    def from_json(cls, raw: Sequence[Any]) -> OnlineRegression:
        """The inverse of `to_json`."""
        count, scale, weights, half = raw
        made = cls(weights)
        made.count, made.scale = count, scale
        values = iter(half)
        for a in range(len(weights)):
            for b in range(a, len(weights)):
                made._inverse[a][b] = made._inverse[b][a] = next(values)
        return made


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    total: float = sum(map(mul, left, right))
    return total


@dataclass(frozen=True, slots=True)
class LengthTraits:
    """What the length of a stage may depend on, before any model spoke.

    Attributes:
        position: stages of the job that came before.
        lengths: log lengths of earlier stages of the job; NaN = none yet.
        others: figures of about unit size.
    """

    position: int = 0
    lengths: tuple[float, ...] = field(default=(math.nan,) * 6)
    others: tuple[float, ...] = field(default=(0.0,) * 6)

    @classmethod
    def of(cls, stage: StageInput) -> LengthTraits:
        """Of a coming stage."""
        past = stage.history
        growth = stage.prompt_tokens - past.prev_prompt_tokens
        return cls(
            stage.position,
            (past.role_last_1, past.role_last_2, past.role_mean,
             past.step_last_1, past.job_mean, past.last_1),
            (
                math.log1p(stage.position) - 1.5,
                float(stage.position == 0),
                math.log1p(stage.prompt_tokens) / 2 - 3,
                math.log1p(max(0.0, growth)) / 2 - 2 if math.isfinite(growth) else 0.0,
                float(past.same_prompt),
                past.prev_tool - 0.5 if math.isfinite(past.prev_tool) else 0.0,
            ),
        )  # fmt: skip

    def row(self, anchor: float, usual: float, said: Sequence[float | None]) -> tuple[float, ...]:
        """The row of the regression, `len(START)` columns.

        Args:
            anchor: log of the usual value of what is predicted.
            usual: log of the usual length of a stage, which `lengths` are compared with.
            said: log of what the models say of it, the most general first; None = nothing, which
                counts as the one before.
        """
        columns, last = [1.0], anchor
        for value in said:
            last = last if value is None else value
            columns.append(last - anchor)
        columns += [0.0 if math.isnan(value) else value - usual for value in self.lengths]
        return (*columns, *self.others)


START = (0.0, 0.0, 0.3, *(0.0,) * 12)
"""Weights of a fit that has seen nothing: the anchor, drawn towards what the nearest model says."""
