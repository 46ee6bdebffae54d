"""Predictions handed to the cores, with an error that is known.

The errors of a call are drawn when the workload is made (`Call.noise`), so every policy that is
compared in one experiment sees the same ones, and a larger error is the same draw scaled.

kinds:
    none        the truth (source ``oracle``)
    lognormal   truth x exp(rho z), z standard normal; q90 is the 0.9 quantile under that error
    residuals   truth x exp(r), r drawn from measured log residuals (predicted over true)
    measured    what our predictors said of such stages in cross-validation (`measured_error`);
                of tool calls, whose error was not measured, nothing but whether one is possible
    prior       the same constant for every stage: nothing is known
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from types import MappingProxyType

from maestroctl.domain.ids import ModelName
from maestroctl.domain.prediction import PRIOR, Prediction
from maestroctl.sim.jobs import Call, JobPlan, Run
from maestroctl.sim.measured_error import load_measured

Remaining = Mapping[ModelName, float]
"""Output tokens still to come, per model that could produce them."""
_NO_CONFIDENCE: Mapping[ModelName, float] = MappingProxyType({})
KINDS = ("none", "lognormal", "residuals", "measured", "prior")
_Z90 = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, slots=True)
class PredictionError:
    """The knob.

    Attributes:
        kind: of `KINDS`.
        rho: standard deviation of the log error, kind ``lognormal``.
        residuals: rising log ratios predicted / true, kind ``residuals``.
    """

    kind: str = "none"
    rho: float = 0.0
    residuals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "residuals" and not self.residuals:
            raise ValueError("this error needs residuals to draw from")


class Predictor:
    """Makes the prediction of each call of one job."""

    def __init__(self, error: PredictionError) -> None:
        self._error = error
        self._residuals = tuple(sorted(error.residuals))
        self._q90_factor = math.exp(self._to_q90())

    def remaining(self, plan: JobPlan) -> dict[Run, list[Remaining]]:
        """Output tokens from each call on, per model, as if runs came one after the other.

        The truth; kind ``measured``, whose error depends on the place in the job, applies it here.
        """
        models = plan.models
        calls_in_order = [(run, call) for run, calls in plan.calls.items() for call in calls]
        left = dict.fromkeys(models, 0)
        table: dict[Run, list[Remaining]] = {run: [] for run in plan.calls}
        for run, call in reversed(calls_in_order):
            left = {model: tokens + call.tokens_on(model) for model, tokens in left.items()}
            table[run].append(left)
        for rows in table.values():
            rows.reverse()
        if self._error.kind == "measured":
            return _told(plan, table)
        return table

    def predict(
        self,
        call: Call,
        remaining: Remaining,
        confidence: Mapping[ModelName, float] = _NO_CONFIDENCE,
        app: str = "",
    ) -> Prediction:
        """What is said of `call` when it becomes ready.

        Args:
            call: the call, truth included.
            remaining: what `remaining` says of it.
            confidence: of a router, per model.
            app: the application, which kind ``measured`` depends on.
        """
        error = self._error
        if error.kind == "prior":
            return PRIOR
        own, total = (self._log_error(z) for z in call.noise)
        q50 = call.output_tokens * math.exp(own)
        q90 = q50 * self._q90_factor
        p_tool = 1.0 if call.tool_called else 0.0
        if error.kind == "measured":
            q50, q90 = load_measured().length(app, call.role, call.output_tokens, call.noise[0])
            p_tool = 0.5 if call.tools_available else 0.0
        factor = math.exp(total)
        return Prediction(
            output_q50=q50,
            output_q90=q90,
            p_tool=p_tool,
            total_tokens={model: remaining[model] * factor for model in call.models},
            confidence=confidence,
            rank_score=q50,
            source="oracle" if error.kind == "none" else "model",
        )

    def _log_error(self, z: float) -> float:
        match self._error.kind:
            case "lognormal":
                return self._error.rho * z
            case "residuals":
                return _pick(self._residuals, NormalDist().cdf(z))
            case _:
                return 0.0

    def _to_q90(self) -> float:
        """Log distance from a predicted median to the 0.9 quantile of the truth."""
        match self._error.kind:
            case "lognormal":
                return _Z90 * self._error.rho
            case "residuals":
                return max(0.0, -_pick(self._residuals, 0.1))
            case _:
                return 0.0


def _told(plan: JobPlan, truth: dict[Run, list[Remaining]]) -> dict[Run, list[Remaining]]:
    """What is told of the remainders of a job, calls in the order of its plan."""
    measured, app = load_measured(), plan.workflow.name
    noises = [call.noise[1] for calls in plan.calls.values() for call in calls]
    along = iter(enumerate(measured.correlated(app, noises)))
    table: dict[Run, list[Remaining]] = {}
    for run, rows in truth.items():
        table[run] = []
        for row in rows:
            position, noise = next(along)
            table[run].append(
                {
                    model: measured.remaining(app, position, tokens, noise)
                    for model, tokens in row.items()
                }
            )
    return table


def _pick(ordered: Sequence[float], part: float) -> float:
    """Quantile of a sorted sample, by interpolation."""
    place = part * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 1)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
