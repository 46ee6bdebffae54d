"""The four costs of an iteration from what was measured (algorithms section 1).

A sample is a stretch of an engine's work: how many iterations it had, the sums over them of
decoding sequences, of tokens in KV and of prefill tokens, and the seconds it took. The model is
linear in these sums,

    seconds = c0 iterations + c1 sum(b) + c2 sum(context) + cp sum(prefill) + r requests,

so one least-squares problem takes in decoding and prefill at once. `r`, the time of a request
outside of iterations (HTTP, tokenizing), is fitted beside the four so that it does not leak into
them.

Errors count relative to the sample's length, or long prefills would decide everything; the length
is the larger of the measured and the predicted one, so that a sample that came out far too short
(its tokens reached a starved client all at once) has no more say than one that took far too long.
No cost is negative: of all subsets of columns the one with the least error and no negative cost is
taken, which for five columns is exact and quick. Samples that the machine disturbed count less
(Huber weights, a few rounds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from maestroctl.domain.llm import IterationCost
from maestroctl.domain.profile import FitQuality

_ROUNDS = 8
_HUBER = 1.345
"""Residuals over this many standard deviations count less; 95 % efficient without outliers."""
_LEAST_SCALE = 1e-6
_Z95 = 1.96

Rows = Sequence[tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class IterationSample:
    """One stretch of work; sums over its iterations.

    Attributes:
        seconds: it lasted.
        decoding: sum of b.
        context_tokens: sum of the tokens in KV of the decoding sequences.
        prefill_tokens: sum of prompt tokens.
        requests: how many times the stretch includes the way of a request into the engine.
    """

    seconds: float
    iterations: float
    decoding: float = 0.0
    context_tokens: float = 0.0
    prefill_tokens: float = 0.0
    requests: float = 0.0

    @property
    def row(self) -> tuple[float, ...]:
        """The sums, in the order of the costs."""
        return (
            self.iterations,
            self.decoding,
            self.context_tokens,
            self.prefill_tokens,
            self.requests,
        )


@dataclass(frozen=True, slots=True)
class IterationFit:
    """What came out; `gamma` of the cost is 1, it is not fitted here."""

    cost: IterationCost
    quality: FitQuality


def fit_iteration_cost(samples: Sequence[IterationSample]) -> IterationFit:
    """Least relative squares with non-negative costs and bounded influence.

    Args:
        samples: of different batch sizes, contexts and prompts, at least one.

    Raises:
        ValueError: there is no sample, or one of no length.
    """
    if not samples or any(sample.seconds <= 0 for sample in samples):
        raise ValueError("a fit needs samples, each of more than 0 s")
    seconds = [sample.seconds for sample in samples]
    sums = [sample.row for sample in samples]
    weights = [1.0] * len(samples)
    costs = _solve(sums, seconds, weights)
    for _ in range(_ROUNDS):
        scaled, targets = _scale(sums, seconds, costs)
        residuals = _residuals(scaled, targets, costs)
        scale = max(_LEAST_SCALE, 1.4826 * median(abs(r) for r in residuals))
        weights = [min(1.0, _HUBER * scale / max(abs(r), 1e-12)) for r in residuals]
        costs = _solve(scaled, targets, weights)
    scaled, targets = _scale(sums, seconds, costs)
    errors = sorted(abs(r) for r in _residuals(scaled, targets, costs))
    half = _half_intervals(scaled, targets, weights, costs)
    intervals = [
        (max(0.0, cost - width), cost + width) for cost, width in zip(costs, half, strict=True)
    ]
    quality = FitQuality(
        num_samples=len(samples),
        median_error=median(errors),
        p90_error=errors[min(len(errors) - 1, int(0.9 * len(errors)))],
        c0_interval_s=intervals[0],
        c1_interval_s=intervals[1],
        c2_interval_s=intervals[2],
        cp_interval_s=intervals[3],
        request_s=costs[4],
    )
    return IterationFit(IterationCost(*costs[:4]), quality)


def _scale(
    sums: Rows, seconds: Sequence[float], costs: Sequence[float]
) -> tuple[list[tuple[float, ...]], list[float]]:
    """Rows and targets over the larger of the measured and the predicted seconds."""
    lengths = [max(measured, _dot(costs, row)) for row, measured in zip(sums, seconds, strict=True)]
    rows = [
        tuple(value / length for value in row) for row, length in zip(sums, lengths, strict=True)
    ]
    return rows, [measured / length for measured, length in zip(seconds, lengths, strict=True)]


def _dot(costs: Sequence[float], row: Sequence[float]) -> float:
    return sum(cost * value for cost, value in zip(costs, row, strict=True))


def _residuals(rows: Rows, targets: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Predicted minus measured, in the lengths of `_scale`: from -1 to 1."""
    return [_dot(costs, row) - target for row, target in zip(rows, targets, strict=True)]


def _solve(rows: Rows, targets: Sequence[float], weights: Sequence[float]) -> list[float]:
    """argmin of sum w (row . costs - target)^2 over costs >= 0."""
    width = len(rows[0])
    gram, right = _normal_equations(rows, targets, weights)
    best, best_gain = [0.0] * width, 0.0
    used = [i for i in range(width) if gram[i][i] > 0]
    for size in range(1, len(used) + 1):
        for subset in combinations(used, size):
            part = _eliminate([[gram[i][j] for j in subset] for i in subset], _pick(right, subset))
            if part is None or min(part) < 0:
                continue
            # At a solution of the normal equations, this is how much the squares have shrunk.
            gain = sum(value * right[i] for value, i in zip(part, subset, strict=True))
            if gain > best_gain * (1 + 1e-12):
                best_gain, best = gain, [0.0] * width
                for value, i in zip(part, subset, strict=True):
                    best[i] = value
    return best


def _normal_equations(
    rows: Rows, targets: Sequence[float], weights: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    width = range(len(rows[0]))
    gram = [
        [sum(w * row[i] * row[j] for w, row in zip(weights, rows, strict=True)) for j in width]
        for i in width
    ]
    right = [
        sum(w * row[i] * t for w, row, t in zip(weights, rows, targets, strict=True)) for i in width
    ]
    return gram, right


def _half_intervals(
    rows: Rows, targets: Sequence[float], weights: Sequence[float], costs: Sequence[float]
) -> list[float]:
    """Half widths of the 95 % intervals; 0 for a cost that is held at 0."""
    free = [i for i, cost in enumerate(costs) if cost > 0]
    left = sum(weights) - len(free)
    half = [0.0] * len(costs)
    if left <= 0 or not free:
        return half
    squares = zip(weights, _residuals(rows, targets, costs), strict=True)
    variance = sum(w * r * r for w, r in squares) / left
    gram, _ = _normal_equations(rows, targets, weights)
    inner = [[gram[i][j] for j in free] for i in free]
    for place, i in enumerate(free):
        unit = [1.0 if other == place else 0.0 for other in range(len(free))]
        column = _eliminate([line[:] for line in inner], unit)
        if column is not None:
            half[i] = _Z95 * math.sqrt(max(0.0, variance * column[place]))
    return half


def _pick(values: Sequence[float], places: Sequence[int]) -> list[float]:
    return [values[i] for i in places]


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solution of a small symmetric system after scaling it; None when it is singular."""
    size = len(right)
    scale = [math.sqrt(matrix[i][i]) for i in range(size)]
    if min(scale) <= 0:
        return None
    lines = [
        [matrix[i][j] / (scale[i] * scale[j]) for j in range(size)] + [right[i] / scale[i]]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda i: abs(lines[i][column]))
        if abs(lines[pivot][column]) < 1e-10:
            return None
        lines[column], lines[pivot] = lines[pivot], lines[column]
        for i in range(size):
            if i != column:
                factor = lines[i][column] / lines[column][column]
                lines[i] = [a - factor * b for a, b in zip(lines[i], lines[column], strict=True)]
    return [lines[i][size] / lines[i][i] / scale[i] for i in range(size)]
