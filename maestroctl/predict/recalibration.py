"""Online learning: what this fleet's own stages teach, on top of models trained elsewhere.

Theory of operation
-------------------
What ships was trained on other applications, and a new one is unlike all of them. For each
(workflow, role, step, model) the state keeps

1. a window of output lengths: the *profile*, an expert of its own, and the fallback when no model
   answers in time;
2. per expert (``profile``, ``model``, and a ``local`` one once a refit was swapped in) an
   EWMA of its log error, which corrects its bias, and an EWMA of its absolute error in tokens,
   which says how far to trust it. Experts are averaged in log space with weights
   ``(1 / error) ** SHARPNESS``; the profile has no say before `MIN_EVIDENCE` observations;
3. conformal scores log(L) - log(q90): their upper quantile shifts the next q90. The level of that
   quantile moves with the misses (adaptive conformal inference), so a drifting stream keeps its
   coverage. Thin keys borrow from their workflow.

Remaining totals have windows and biases of the same kind, in log space.

An aborted stage is a *censored* observation: its length is at least what was seen. A booked
quantile that was passed is a miss at once; else the censored value enters the window as the median
of the kept values above it. All state is plain JSON and survives a restart; `reset` forgets a
workflow or everything. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from maestroctl.errors import SchemaMismatch
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.running_window import RunningWindow

STATE_VERSION = 1
COVERAGE = 0.9
MIN_EVIDENCE = 3
SHARPNESS = 4.0
PRIOR_WEIGHT = 4.0
"""Observations' worth of trust in a model before any was seen."""

MAX_GROUPS = 20_000
"""Names of workflows and roles come from clients; memory must not grow with them."""

_MEMORY = 0.97
"""EWMA factor per observation: about the last 33 count."""
_SCORES = 150
_MIN_SCORES = 25
_LEVEL_STEP = 0.01
_LEVEL_BOUNDS = (0.75, 0.995)
_MAX_LOG = math.log1p(10**8)
_DRIFT_FAST, _DRIFT_SLOW = 0.9, 0.995


@dataclass(frozen=True, slots=True)
class StageKey:
    """What a running figure belongs to."""

    workflow: str
    role: str
    step: str
    model: str

    def path(self) -> tuple[str, ...]:
        """Names of the groups from the most specific to the widest."""
        exact = "\x1f".join((self.workflow, self.role, self.step, self.model))
        role = "\x1f".join((self.workflow, self.role, "*", "*"))
        model = "\x1f".join(("*", "*", "*", self.model))
        return (exact, role, model, "*")


@dataclass(slots=True)
class _Expert:
    """How one expert did in one group. Errors are EWMAs; `count` observations."""

    count: int = 0
    bias: float = 0.0
    loss: float = 0.0

    def observe(self, log_predicted: float, log_seen: float) -> None:
        corrected = log_predicted + self.correction()
        error = abs(math.expm1(corrected) - math.expm1(log_seen))
        rate = max(1 - _MEMORY, 1 / (self.count + 1))
        self.loss += rate * (error - self.loss)
        # The sign, not the size: the aim is the median, and a heavy tail must not pull it.
        residual = log_seen - log_predicted - self.bias
        self.bias += max(0.03, 0.5 / (self.count + 2)) * max(-1.0, min(1.0, residual))
        self.count += 1

    def correction(self) -> float:
        return self.bias * self.count / (self.count + PRIOR_WEIGHT)


@dataclass(slots=True)
class _Group:
    """Running figures of one key or of a wider group."""

    lengths: RunningWindow = field(default_factory=RunningWindow)
    totals: RunningWindow = field(default_factory=RunningWindow)
    scores: RunningWindow = field(default_factory=lambda: RunningWindow(size=_SCORES))
    experts: dict[str, _Expert] = field(default_factory=dict)
    total_experts: dict[str, _Expert] = field(default_factory=dict)
    level: float = COVERAGE
    misses: float = 1 - COVERAGE
    error_fast: float = 0.0
    error_slow: float = 0.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Final figures of one candidate, in tokens; 0 <= q50 <= q90 <= total's scale."""

    q50: float
    q90: float
    total: float
    source: str
    base_q90: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The state at a glance.

    Attributes:
        cells: groups with figures of their own.
        coverage_q90: share of recent stages that stayed within their 0.9 quantile; aim 0.9.
        bias: mean log error of the learned model before correction; above 0 = too short.
    """

    cells: int
    observations: int
    coverage_q90: float | None
    bias: float | None


@dataclass(frozen=True, slots=True)
class Observation:
    """What came out of a stage.

    Attributes:
        output_tokens: seen so far when `censored`, else the final length.
        censored: the stage was aborted or cancelled: the length is a lower bound.
        remaining_tokens: this and all later stages; None until the job ended.
        miss_counted: `count_miss` was called for it while it ran.
    """

    output_tokens: int
    censored: bool = False
    remaining_tokens: int | None = None
    miss_counted: bool = False


class OnlineState:
    """All calibration of one fleet. One owner; not thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._changed: set[str] = set()
        """Groups touched or dropped since `take_changes`."""
        self.observed = 0

    # -- reading ---------------------------------------------------------------------------------

    def calibrate(
        self, key: StageKey, experts: Mapping[str, CandidateFigures], position: int = 0
    ) -> Calibrated:
        """Blend and correct what the experts say; with no expert this is the fallback.

        Args:
            key: of the stage under one candidate model.
            experts: raw figures by expert name; may be empty.
            position: stages that came before, for the running totals.
        """
        q50, q90, source = self._blend_length(key, experts)
        if q50 is None or q90 is None:
            return Calibrated(128.0, 512.0, 512.0, "prior", 512.0)
        total = self._blend_total(key, experts, position)
        shifted = min(_MAX_LOG, max(q50, q90 + self._shift(key)))
        low = math.expm1(q50)
        return Calibrated(
            q50=low,
            q90=max(low, math.expm1(shifted)),
            total=max(low, math.expm1(total)) if total is not None else low,
            source=source,
            base_q90=math.expm1(q90),
        )

    def _blend_length(
        self, key: StageKey, experts: Mapping[str, CandidateFigures]
    ) -> tuple[float | None, float | None, str]:
        exact = self._groups.get(key.path()[0])
        parts: list[tuple[float, float, float]] = []
        for name, figures in experts.items():
            state = exact.experts.get(name) if exact else None
            low = math.log1p(max(0.0, figures.q50)) + (state.correction() if state else 0.0)
            high = math.log1p(max(figures.q50, figures.q90))
            parts.append((self._trust(state), max(0.0, low), high))
        profile = self._profile(key, exact_only=bool(experts))
        if profile is not None:
            state = exact.experts.get("profile") if exact else None
            trust = self._trust(state) if experts else 1.0
            parts.append((trust, profile[0], profile[1]))
        weight = sum(part[0] for part in parts)
        if weight <= 0:
            return None, None, "prior"
        q50 = sum(trust * low for trust, low, _ in parts) / weight
        q90 = sum(trust * high for trust, _, high in parts) / weight
        return q50, max(q50, q90), "model" if experts else "profile"

    @staticmethod
    def _trust(state: _Expert | None) -> float:
        """(1 / error) ** SHARPNESS, drawn towards an even share while evidence is thin."""
        if state is None or state.count == 0:
            return 1e-3
        return float((1.0 + state.loss) ** -SHARPNESS)

    def _profile(self, key: StageKey, *, exact_only: bool) -> tuple[float, float] | None:
        for name in key.path()[: 1 if exact_only else None]:
            group = self._groups.get(name)
            if group is not None and len(group.lengths) >= MIN_EVIDENCE:
                return group.lengths.quantile(0.5), group.lengths.quantile(COVERAGE)
        return None

    def _shift(self, key: StageKey) -> float:
        """Conformal shift of log q90, from the narrowest group with enough scores."""
        for name in key.path()[:2]:
            group = self._groups.get(name)
            if group is not None and len(group.scores) >= _MIN_SCORES:
                return group.scores.quantile(group.level)
        return 0.0

    def _blend_total(
        self, key: StageKey, experts: Mapping[str, CandidateFigures], position: int
    ) -> float | None:
        group = self._groups.get(_total_name(key, position))
        parts: list[tuple[float, float]] = []
        for name, figures in experts.items():
            state = group.total_experts.get(name) if group else None
            corrected = math.log1p(max(0.0, figures.total)) + (state.correction() if state else 0.0)
            parts.append((self._trust(state), corrected))
        for name in (_total_name(key, position), *key.path()):
            seen = self._groups.get(name)
            if seen is not None and len(seen.totals) >= MIN_EVIDENCE:
                state = seen.total_experts.get("profile")
                parts.append((self._trust(state), seen.totals.quantile(0.5)))
                break
        weight = sum(trust for trust, _ in parts)
        return sum(trust * value for trust, value in parts) / weight if weight > 0 else None

    # -- learning --------------------------------------------------------------------------------

    def observe(
        self,
        key: StageKey,
        experts: Mapping[str, CandidateFigures],
        told: Calibrated,
        observation: Observation,
        position: int = 0,
    ) -> None:
        """Learn from a stage that ended.

        Args:
            experts: the raw figures that `told` was made of.
            told: what `calibrate` answered for this stage.
        """
        seen = math.log1p(observation.output_tokens)
        missed = observation.output_tokens > told.q90
        if observation.censored and not missed:
            seen = self._complete(key, seen)
        for name in key.path():
            group = self._touch(name)
            self._learn_length(group, experts, seen, learn_experts=name == key.path()[0])
            group.scores.add(seen - math.log1p(told.base_q90))
            if not observation.miss_counted:
                _count_coverage(group, missed)
            _learn_error(group, abs(seen - math.log1p(told.q50)))
        self.observed += 1
        if observation.remaining_tokens is not None and not observation.censored:
            self.observe_total(key, experts, observation.remaining_tokens, position)

    def count_miss(self, key: StageKey) -> None:
        """A stage that still runs has passed its quantile: the level moves without waiting."""
        for name in key.path():
            _count_coverage(self._touch(name), missed=True)

    def observe_total(
        self,
        key: StageKey,
        experts: Mapping[str, CandidateFigures],
        remaining_tokens: int,
        position: int = 0,
    ) -> None:
        """Learn what a stage's job still had to say; known when the job ended."""
        seen = math.log1p(remaining_tokens)
        own = self._touch(_total_name(key, position))
        if len(own.totals) >= MIN_EVIDENCE:
            own.total_experts.setdefault("profile", _Expert()).observe(
                own.totals.quantile(0.5), seen
            )
        for name, figures in experts.items():
            own.total_experts.setdefault(name, _Expert()).observe(
                math.log1p(max(0.0, figures.total)), seen
            )
        own.totals.add(seen)
        for name in key.path():
            self._touch(name).totals.add(seen)

    def _touch(self, name: str) -> _Group:
        """The group of this name, made when new; the least recently touched gives way."""
        group = self._groups.pop(name, None) or _Group()
        self._groups[name] = group
        self._changed.add(name)
        if len(self._groups) > MAX_GROUPS:
            oldest = next(iter(self._groups))
            del self._groups[oldest]
            self._changed.add(oldest)
        return group

    def _complete(self, key: StageKey, floor: float) -> float:
        """A likely final length for one of which only the beginning was seen."""
        for name in key.path():
            group = self._groups.get(name)
            if group is not None and (above := group.lengths.values_above(floor)):
                return above[len(above) // 2]
        return floor

    @staticmethod
    def _learn_length(
        group: _Group,
        experts: Mapping[str, CandidateFigures],
        seen: float,
        *,
        learn_experts: bool,
    ) -> None:
        if learn_experts:
            if len(group.lengths) >= MIN_EVIDENCE:
                profile = group.experts.setdefault("profile", _Expert())
                profile.observe(group.lengths.quantile(0.5), seen)
                profile.bias = 0.0
            for name, figures in experts.items():
                expert = group.experts.setdefault(name, _Expert())
                expert.observe(math.log1p(max(0.0, figures.q50)), seen)
        group.lengths.add(seen)

    # -- keeping ---------------------------------------------------------------------------------

    def drift(self) -> dict[str, dict[str, float]]:
        """Per (workflow, role): recent over long-run error, miss rate, stages seen."""
        figures = {}
        for name, group in self._groups.items():
            workflow, _, rest = name.partition("\x1f")
            if rest.endswith("\x1f*\x1f*") and workflow != "*":
                label = f"{workflow}/{rest.split(chr(31))[0]}"
                figures[label] = {
                    "error_ratio": group.error_fast / group.error_slow if group.error_slow else 1.0,
                    "miss_rate": group.misses,
                    "stages": float(group.lengths.count),
                }
        return figures

    def keep_experts(self, names: Collection[str]) -> None:
        """Drop what was learned about every other expert: models that are no longer asked."""
        for key, group in self._groups.items():
            for experts in (group.experts, group.total_experts):
                for name in [name for name in experts if name not in names]:
                    del experts[name]
                    self._changed.add(key)

    def reset(
        self, workflow: str | None = None, role: str | None = None, model: str | None = None
    ) -> int:
        """Forget what belongs to all of the names given; with none given, everything.

        Returns:
            How many groups were forgotten.
        """
        wanted = (workflow, role, None, model)
        doomed = [name for name in self._groups if _matches(name, wanted)]
        for name in doomed:
            del self._groups[name]
        self._changed.update(doomed)
        if not self._groups:
            self.observed = 0
        return len(doomed)

    def summary(self) -> Summary:
        """How many figures there are and how good they were; for people."""
        everything = self._groups.get("*")
        experts = [
            (expert.count, expert.bias)
            for group in self._groups.values()
            if (expert := group.experts.get("model")) is not None
        ]
        known = sum(count for count, _ in experts)
        return Summary(
            cells=len(self._groups),
            observations=self.observed,
            coverage_q90=None if everything is None else 1 - everything.misses,
            bias=sum(count * bias for count, bias in experts) / known if known else None,
        )

    def take_changes(self, most: int) -> dict[str, dict[str, Any] | None]:
        """Up to `most` groups that changed and were not taken since; None = forgotten.

        The state is written down piece by piece, since all of it may be large.
        """
        names = [self._changed.pop() for _ in range(min(most, len(self._changed)))]
        return {
            name: _group_to_json(group) if (group := self._groups.get(name)) else None
            for name in names
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        groups = {name: _group_to_json(group) for name, group in self._groups.items()}
        return {"version": STATE_VERSION, "observed": self.observed, "groups": groups}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> OnlineState:
        """The inverse of `to_json`.

        Raises:
            SchemaMismatch: written by another version.
        """
        if raw.get("version") != STATE_VERSION:
            raise SchemaMismatch(
                f"calibration state has version {raw.get('version')!r}, need {STATE_VERSION}",
                hint="reset the calibration",
            )
        state = cls()
        state.observed = int(raw["observed"])
        state._groups = {name: _group_from_json(group) for name, group in raw["groups"].items()}
        return state


def _count_coverage(group: _Group, missed: bool) -> None:
    """Adaptive conformal inference: level += step * (missed - (1 - coverage))."""
    moved = group.level + _LEVEL_STEP * (missed - (1 - COVERAGE))
    group.level = max(_LEVEL_BOUNDS[0], min(_LEVEL_BOUNDS[1], moved))
    group.misses = _MEMORY * group.misses + (1 - _MEMORY) * missed


def _learn_error(group: _Group, error: float) -> None:
    if group.error_slow == 0.0:
        group.error_fast = group.error_slow = error
    group.error_fast = _DRIFT_FAST * group.error_fast + (1 - _DRIFT_FAST) * error
    group.error_slow = _DRIFT_SLOW * group.error_slow + (1 - _DRIFT_SLOW) * error


def _matches(name: str, wanted: tuple[str | None, ...]) -> bool:
    parts = name.split("\x1f")
    return all(
        value is None or (place < len(parts) and parts[place] == value)
        for place, value in enumerate(wanted)
    )


def _total_name(key: StageKey, position: int) -> str:
    """Totals fall with the position, so they are kept by its power of two."""
    return "\x1f".join(
        (key.workflow, key.role, key.step, key.model, f"total{position.bit_length()}")
    )


def _group_to_json(group: _Group) -> dict[str, Any]:
    return {
        "lengths": [group.lengths.count, *group.lengths.values()],
        "totals": [group.totals.count, *group.totals.values()],
        "scores": [group.scores.count, *group.scores.values()],
        "experts": {n: [e.count, e.bias, e.loss] for n, e in group.experts.items()},
        "total_experts": {n: [e.count, e.bias, e.loss] for n, e in group.total_experts.items()},
        "figures": [group.level, group.misses, group.error_fast, group.error_slow],
    }


def _group_from_json(raw: Mapping[str, Any]) -> _Group:
    level, misses, fast, slow = raw["figures"]
    return _Group(
        lengths=RunningWindow(raw["lengths"][1:], count=raw["lengths"][0]),
        totals=RunningWindow(raw["totals"][1:], count=raw["totals"][0]),
        scores=RunningWindow(raw["scores"][1:], size=_SCORES, count=raw["scores"][0]),
        experts={n: _Expert(*e) for n, e in raw["experts"].items()},
        total_experts={n: _Expert(*e) for n, e in raw["total_experts"].items()},
        level=level,
        misses=misses,
        error_fast=fast,
        error_slow=slow,
    )


def experts_for(model: str, said: Mapping[str, RawPrediction]) -> dict[str, CandidateFigures]:
    """The figures of one candidate, by expert."""
    return {name: raw.figures[model] for name, raw in said.items() if model in raw.figures}
