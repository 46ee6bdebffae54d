"""What online learning keeps per group of stages, and the names of the groups.

A group has windows of lengths, remaining totals and conformal scores; a record per expert; an
online regression for either quantity; and figures of coverage and drift. Plain JSON, of bounded
size. What is made of them is in `recalibration`. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maestroctl.predict.online_regression import OnlineRegression
from maestroctl.predict.running_window import RunningWindow

COVERAGE = 0.9
SHARPNESS = 8.0
PRIOR_WEIGHT = 4.0
"""Observations' worth of trust in a model before any was seen."""

_MEMORY = 0.97
"""EWMA factor per observation: about the last 33 count."""
_SCORES = 150
_LEVEL_STEP = 0.01
_LEVEL_BOUNDS = (0.75, 0.995)
_DRIFT_FAST, _DRIFT_SLOW = 0.9, 0.995
_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class StageKey:
    """What a running figure belongs to."""

    workflow: str
    role: str
    step: str
    model: str

    def path(self) -> tuple[str, ...]:
        """Names of the groups from the most specific to the widest."""
        exact = _SEPARATOR.join((self.workflow, self.role, self.step, self.model))
        role = _SEPARATOR.join((self.workflow, self.role, "*", "*"))
        model = _SEPARATOR.join(("*", "*", "*", self.model))
        return (exact, role, model, "*")

    def total_name(self, position: int) -> str:
        """Totals fall with the position, so they are kept by its power of two."""
        exact = (self.workflow, self.role, self.step, self.model, f"total{position.bit_length()}")
        return _SEPARATOR.join(exact)


def role_of(name: str) -> str | None:
    """``workflow/role`` of a group's name; None = the group is not one role's."""
    workflow, _, rest = name.partition(_SEPARATOR)
    role, _, wider = rest.partition(_SEPARATOR)
    return f"{workflow}/{role}" if wider == f"*{_SEPARATOR}*" and workflow != "*" else None


def belongs(name: str, wanted: tuple[str | None, ...]) -> bool:
    """Whether a group's name has every part that is wanted; None = any."""
    parts = name.split(_SEPARATOR)
    return all(
        value is None or (place < len(parts) and parts[place] == value)
        for place, value in enumerate(wanted)
    )


@dataclass(slots=True)
class Expert:
    """How one expert did in one group. Errors are EWMAs; `count` observations."""

    count: int = 0
    bias: float = 0.0
    loss: float = 0.0

    def observe(self, log_predicted: float, log_seen: float, *, keep_bias: bool = True) -> None:
        """Take in an outcome; with `keep_bias` False the expert is never corrected."""
        corrected = log_predicted + self.correction()
        error = abs(math.expm1(corrected) - math.expm1(log_seen))
        rate = max(1 - _MEMORY, 1 / (self.count + 1))
        self.loss += rate * (error - self.loss)
        if keep_bias:
            # The sign, not the size: the aim is the median, and a heavy tail must not pull it.
            residual = log_seen - log_predicted - self.bias
            self.bias += max(0.03, 0.5 / (self.count + 2)) * max(-1.0, min(1.0, residual))
        self.count += 1

    def correction(self) -> float:
        """What to add to the log of its figure."""
        return self.bias * self.count / (self.count + PRIOR_WEIGHT)

    def trust(self) -> float:
        """(1 / error) ** SHARPNESS."""
        return float((1.0 + self.loss) ** -SHARPNESS)


@dataclass(slots=True)
class Group:
    """Running figures of one key or of a wider group."""

    lengths: RunningWindow = field(default_factory=RunningWindow)
    totals: RunningWindow = field(default_factory=RunningWindow)
    scores: RunningWindow = field(default_factory=lambda: RunningWindow(size=_SCORES))
    experts: dict[str, Expert] = field(default_factory=dict)
    total_experts: dict[str, Expert] = field(default_factory=dict)
    length_fit: OnlineRegression | None = None
    total_fit: OnlineRegression | None = None
    level: float = COVERAGE
    misses: float = 1 - COVERAGE
    error_fast: float = 0.0
    error_slow: float = 0.0

    def count_coverage(self, missed: bool) -> None:
        """Adaptive conformal inference: level += step * (missed - (1 - coverage))."""
        moved = self.level + _LEVEL_STEP * (missed - (1 - COVERAGE))
        self.level = max(_LEVEL_BOUNDS[0], min(_LEVEL_BOUNDS[1], moved))
        self.misses = _MEMORY * self.misses + (1 - _MEMORY) * missed

    def count_error(self, error: float) -> None:
        """Two averages of the log error, a quick and a slow one, whose ratio shows a drift."""
        if self.error_slow == 0.0:
            self.error_fast = self.error_slow = error
        self.error_fast = _DRIFT_FAST * self.error_fast + (1 - _DRIFT_FAST) * error
        self.error_slow = _DRIFT_SLOW * self.error_slow + (1 - _DRIFT_SLOW) * error

    def drift(self) -> dict[str, float]:
        """Recent over long-run error, miss rate, stages seen."""
        return {
            "error_ratio": self.error_fast / self.error_slow if self.error_slow else 1.0,
            "miss_rate": self.misses,
            "stages": float(self.lengths.count),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "lengths": _window_to_json(self.lengths),
            "totals": _window_to_json(self.totals),
            "scores": _window_to_json(self.scores),
            "experts": {n: [e.count, e.bias, e.loss] for n, e in self.experts.items()},
            "total_experts": {n: [e.count, e.bias, e.loss] for n, e in self.total_experts.items()},
            "fits": [
                None if fit is None else fit.to_json() for fit in (self.length_fit, self.total_fit)
            ],
            "figures": [self.level, self.misses, self.error_fast, self.error_slow],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Group:
        """The inverse of `to_json`."""
        length_fit, total_fit = (
            None if fit is None else OnlineRegression.from_json(fit) for fit in raw["fits"]
        )
        return cls(
            _window_from_json(raw["lengths"]),
            _window_from_json(raw["totals"]),
            _window_from_json(raw["scores"], size=_SCORES),
            {n: Expert(*e) for n, e in raw["experts"].items()},
            {n: Expert(*e) for n, e in raw["total_experts"].items()},
            length_fit,
            total_fit,
            *raw["figures"],
        )


def _window_to_json(window: RunningWindow) -> list[float]:
    return [window.count, *window.values()]


def _window_from_json(raw: list[float], size: int = 200) -> RunningWindow:
    return RunningWindow(raw[1:], size=size, count=int(raw[0]))
