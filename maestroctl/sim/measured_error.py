"""The errors of our predictors as they were measured, played on simulated jobs.

``measured_error.json`` was written by `predict.residuals` (cross-validation on public traces, its
module text says what is fitted): what is said of a length or a remainder, in logs, is
c + b x truth + s e. So a predictor that knows only the kind of job says the usual figure for it,
which noise on top of the truth would not show. e of the remainder goes along with e of the job's
call before (`lag`): a job that was underestimated stays so for a while.

Applications that were not measured take the pooled line.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Any

_NORMAL = NormalDist()


@cache
def load_measured() -> MeasuredError:
    """The table that ships with the package."""
    text = resources.files("maestroctl.sim").joinpath("measured_error.json").read_text("utf-8")
    return MeasuredError(json.loads(text))


class MeasuredError:
    """Says what a predictor would have said."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._lengths: Mapping[str, Sequence[float]] = table["length"]
        self._remaining: Mapping[str, Mapping[str, Any]] = table["remaining"]
        self._positions: Sequence[int] = table["positions"]
        scores = [_NORMAL.inv_cdf(level) for level in table["levels"]]
        self._length_shape = list(zip(scores, table["length_shape"], strict=True))
        self._remaining_shape = list(zip(scores, table["remaining_shape"], strict=True))

    def length(self, app: str, role: str, tokens: float, noise: float) -> tuple[float, float]:
        """Median and 0.9 quantile that are told of an answer of `tokens`.

        Args:
            noise: a standard normal draw.
        """
        lengths = self._lengths
        line = lengths.get(f"{app}/{role}") or lengths.get(app) or lengths[""]
        c, b, s, to_q90 = line
        said = c + b * math.log(max(1, tokens)) + s * _shaped(self._length_shape, noise)
        q50 = max(1.0, math.exp(said))
        return q50, q50 * math.exp(to_q90)

    def remaining(self, app: str, position: int, tokens: float, noise: float) -> float:
        """Tokens that are told to remain where `tokens` do.

        Args:
            position: calls of the job before.
            noise: of `correlated`.
        """
        lines = (self._remaining.get(app) or self._remaining[""])["lines"]
        c, b, s = lines[bisect_right(self._positions, position) - 1]
        said = c + b * math.log(max(1, tokens)) + s * _shaped(self._remaining_shape, noise)
        return max(1.0, math.exp(said))

    def correlated(self, app: str, noises: Sequence[float]) -> list[float]:
        """Independent draws of a job's calls, in order, made to go along with one another."""
        lag = (self._remaining.get(app) or self._remaining[""])["lag"]
        rest = math.sqrt(max(0.0, 1.0 - lag * lag))
        out: list[float] = []
        for noise in noises:
            out.append(noise if not out else lag * out[-1] + rest * noise)
        return out


def _shaped(shape: Sequence[tuple[float, float]], noise: float) -> float:
    """The quantile of e at the rank of a normal draw, by interpolation, within what was seen."""
    last = shape[0]
    for point in shape:
        if noise < point[0]:
            if point is last:
                return point[1]
            part = (noise - last[0]) / (point[0] - last[0])
            return last[1] + part * (point[1] - last[1])
        last = point
    return last[1]
