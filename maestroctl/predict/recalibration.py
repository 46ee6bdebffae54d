"""Online learning: what this fleet's own stages teach, on top of models trained elsewhere.

Theory of operation
-------------------
What ships was trained on other applications, and a new one is unlike all of them. For each
(workflow, role, step, model) and, wider, each (workflow, role) the state keeps

1. a window of output lengths: the *profile*, an expert of its own, and the fallback when no model
   answers in time;
2. an *online regression* (`online_regression`) on what the job did so far, what the models say and
   the profile's median. It follows within tens of stages what a profile cannot see (a step that
   repeats the one before, a job that runs long) and no refit has yet been told (a new model);
3. per expert (``profile``, ``near`` and ``wide``, which are the two regressions, ``model``, and a
   ``local`` one once a refit was swapped in) an EWMA of its log error, which corrects
   its bias, and an EWMA of its absolute error in tokens, which says how far to trust it. Experts
   are averaged in log space with weights ``(1 / error) ** SHARPNESS``; profile and regressions
   have no say before they have seen a few stages;
4. conformal scores log(L) - log(q90): their upper quantile shifts the next q90. The level of that
   quantile moves with the misses (adaptive conformal inference), so a drifting stream keeps its
   coverage. Thin keys borrow from their workflow.

Remaining totals have windows, biases and a regression of the same kind, in log space.

An aborted stage is a *censored* observation: its length is at least what was seen. A booked
quantile that was passed is a miss at once; else the censored value enters the window as the median
of the kept values above it. All state (`group_table`) survives a restart and can be reset. Standard
library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from maestroctl.predict.blending import (
    MIN_EVIDENCE,
    blend_length,
    blend_total,
    fits_of,
)
from maestroctl.predict.calibrated import Asked, Calibrated, Observation, Summary
from maestroctl.predict.group_table import GroupTable
from maestroctl.predict.online_regression import START, LengthTraits, OnlineRegression
from maestroctl.predict.raw_prediction import CandidateFigures, RawPrediction
from maestroctl.predict.running_figures import Expert, Group, StageKey

__all__ = ["Calibrated", "Observation", "OnlineState", "StageKey", "Summary", "experts_for"]

MIN_TO_FIT = 10
"""Stages of a group before it gets a regression: names come from clients, and few come often."""

_MIN_SCORES = 25
_MAX_LOG = math.log1p(10**8)
_NO_TRAITS = LengthTraits()


class OnlineState(GroupTable):
    """All calibration of one fleet. One owner; not thread-safe."""

    # -- reading ---------------------------------------------------------------------------------

    def calibrate(
        self,
        key: StageKey,
        experts: Mapping[str, CandidateFigures],
        traits: LengthTraits = _NO_TRAITS,
    ) -> Calibrated:
        """Blend and correct what the experts say; with no expert this is the fallback.

        Args:
            key: of the stage under one candidate model.
            experts: raw figures by expert name; may be empty.
            traits: of the stage.
        """
        path = [self._groups.get(name) for name in key.path()]
        length = blend_length(path, experts, traits)
        own = self._groups.get(key.total_name(traits.position))
        total, asked_total = blend_total(own, path, experts, traits, length.asked.anchor)
        asked = (traits.position, length.asked, asked_total)
        if length.q50 is None or length.q90 is None:
            return Calibrated(128.0, 512.0, 128.0, "prior", 512.0, *asked, False)
        low = math.expm1(length.q50)
        shifted = min(_MAX_LOG, max(length.q50, length.q90 + self._shift(key)))
        high = max(low, math.expm1(shifted))
        total_tokens = low if total is None else max(low, math.expm1(min(_MAX_LOG, total)))
        source = "model" if experts else "profile"
        base_q90, is_known = math.expm1(length.q90), total is not None
        return Calibrated(low, high, total_tokens, source, base_q90, *asked, is_known)

    def _shift(self, key: StageKey) -> float:
        """Conformal shift of log q90, from the narrowest group with enough scores."""
        for name in key.path()[:2]:
            group = self._groups.get(name)
            if group is not None and len(group.scores) >= _MIN_SCORES:
                return group.scores.quantile(group.level)
        return 0.0

    # -- learning --------------------------------------------------------------------------------

    def observe(
        self,
        key: StageKey,
        experts: Mapping[str, CandidateFigures],
        told: Calibrated,
        observation: Observation,
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
        path = [self._touch(name) for name in key.path()]
        self._judge_length(path[0], path[1], experts, told.asked_length, seen)
        for group in path:
            group.lengths.add(seen)
            group.scores.add(seen - math.log1p(told.base_q90))
            if not observation.miss_counted:
                group.count_coverage(missed)
            group.count_error(abs(seen - math.log1p(told.q50)))
        if not observation.censored:
            for group in path[:2]:
                group.length_fit = _learn(
                    group.length_fit, group.lengths.count, told.asked_length, seen
                )
        self.observed += 1
        if observation.remaining_tokens is not None and not observation.censored:
            self.observe_total(key, experts, told, observation.remaining_tokens)

    @staticmethod
    def _judge_length(
        exact: Group,
        role: Group,
        experts: Mapping[str, CandidateFigures],
        asked: Asked,
        seen: float,
    ) -> None:
        """Record how far every expert was from what was seen, before any learns from it."""
        said = {name: math.log1p(max(0.0, f.q50)) for name, f in experts.items()}
        for name, fit in fits_of(exact, role):
            said[name] = asked.anchor + fit.predict(asked.row)
        for group in (exact, role):
            for name, value in said.items():
                group.experts.setdefault(name, Expert()).observe(value, seen)
        if len(exact.lengths) >= MIN_EVIDENCE:
            middle = exact.lengths.quantile(0.5)
            for group in (exact, role):
                group.experts.setdefault("profile", Expert()).observe(middle, seen, keep_bias=False)

    def count_miss(self, key: StageKey) -> None:
        """A stage that still runs has passed its quantile: the level moves without waiting."""
        for name in key.path():
            self._touch(name).count_coverage(missed=True)

    def observe_total(
        self,
        key: StageKey,
        experts: Mapping[str, CandidateFigures],
        told: Calibrated,
        remaining_tokens: int,
    ) -> None:
        """Learn what a stage's job still had to say; known when the job ended."""
        seen, asked = math.log1p(remaining_tokens), told.asked_total
        own = self._touch(key.total_name(told.position))
        path = [self._touch(name) for name in key.path()]
        role = path[1]
        said = {name: math.log1p(max(0.0, f.total)) for name, f in experts.items()}
        if role.total_fit is not None:
            said["wide"] = asked.anchor + role.total_fit.predict(asked.row)
        for group in (own, role):
            for name, value in said.items():
                group.total_experts.setdefault(name, Expert()).observe(value, seen)
        if len(own.totals) >= MIN_EVIDENCE:
            own.total_experts.setdefault("profile", Expert()).observe(
                own.totals.quantile(0.5), seen
            )
        for group in (own, *path):
            group.totals.add(seen)
        role.total_fit = _learn(role.total_fit, role.totals.count, asked, seen)

    def _complete(self, key: StageKey, floor: float) -> float:
        """A likely final length for one of which only the beginning was seen."""
        for name in key.path():
            group = self._groups.get(name)
            if group is not None and (above := group.lengths.values_above(floor)):
                return above[len(above) // 2]
        return floor


def _learn(
    fit: OnlineRegression | None, count: int, asked: Asked, seen: float
) -> OnlineRegression | None:
    """Teach a group's regression; it is made once the group has seen enough."""
    if fit is None and count < MIN_TO_FIT:
        return None
    fit = fit or OnlineRegression(START)
    fit.learn(asked.row, seen - asked.anchor)
    return fit


def experts_for(model: str, said: Mapping[str, RawPrediction]) -> dict[str, CandidateFigures]:
    """The figures of one candidate, by expert."""
    return {name: raw.figures[model] for name, raw in said.items() if model in raw.figures}
