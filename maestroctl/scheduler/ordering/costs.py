"""What a stage costs and what follows it, in seconds, for the orders (Maestro Eqs 2, 7, 8).

T_exec of a stage is Eq 2 at batch 1 times the pace of its model: how much longer its stages really
took of late, batching and contention included. The pace makes predicted seconds comparable to the
measured ones of the execution profile. A model without a profile (an engine that somebody else
runs) starts from `UNKNOWN_TOKEN_S` and the pace does the rest.

A stage is priced at its first candidate model: the order is asked before the model is chosen.
"""

from __future__ import annotations

from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.estimate.service_time import estimate_execution_s
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.execution_profile import ExecutionProfile
from maestroctl.scheduler.routing.fleet_state import FleetState, Place

UNKNOWN_TOKEN_S, UNKNOWN_PROMPT_S = 0.02, 0.0002
"""Seconds per output and per prompt token of a model nobody has measured: a small one on a GPU."""


class Costs:
    """Reads the fleet's profiles and the execution profile. Owner: `CoordinatorCore`."""

    __slots__ = ("_fleet", "_profile")

    def __init__(
        self, fleet: FleetState | None = None, profile: ExecutionProfile | None = None
    ) -> None:
        self._fleet = fleet or FleetState(0)
        self._profile = profile or ExecutionProfile()

    def alone_s(self, stage: StageDescriptor, output_tokens: float) -> float:
        """Eq 2 at batch 1: prefill of the stage's prompt and decoding of that many tokens.

        Does not change with time, so equal stages get equal keys.
        """
        profile = self._model_profile(stage.candidates[0])
        return nominal_s(profile, stage.prompt_tokens.full, max(0.0, output_tokens))

    def execution_s(self, stage: StageDescriptor, output_tokens: float) -> float:
        """T_exec (Eq 2) at the pace of the model."""
        return self.alone_s(stage, output_tokens) * self._profile.pace(stage.candidates[0])

    def remaining_work_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem (Eq 7): T_exec at the predicted median plus T_future, all branches."""
        tokens = clamp_to_request(stage, prediction.output_q50)
        return self.execution_s(stage, tokens) + self._profile.future_work_s(stage)

    def remaining_alone_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem along the critical path as if every stage ran at batch 1: medians of both parts."""
        tokens = clamp_to_request(stage, prediction.output_q50)
        return self.alone_s(stage, tokens) + self._profile.future_path_s(stage) / self.pace(stage)

    def total_alone_s(self, stage: StageDescriptor, prediction: Prediction, total: float) -> float:
        """The same from a prediction of the job's `total` tokens, which sums over branches: of what
        is beyond this stage the part counts that is usually on the longest of them.
        """
        own_s = self.alone_s(stage, clamp_to_request(stage, prediction.output_q50))
        rest_s = max(0.0, self.alone_s(stage, total) - own_s)
        return own_s + self._profile.path_share(stage) * rest_s

    def pace(self, stage: StageDescriptor) -> float:
        """Seconds that stages like this take per second of `alone_s`, of late."""
        return self._profile.pace(stage.candidates[0])

    def stage_finished(self, stage: StageState, place: Place, served_s: float) -> None:
        """The core tells that the stage finished at `place` after `served_s` of execution."""
        self._profile.stage_ended(stage.stage, served_s, stage.path_s)
        spent_s = nominal_s(
            place.profile, stage.stage.prompt_tokens.full, float(stage.output_tokens)
        )
        self._profile.note_pace(place.model, spent_s, served_s)

    def _model_profile(self, model: ModelName) -> ModelProfile | None:
        for place in self._fleet.places(model).values():
            if place.profile is not None:
                return place.profile
        return None


def clamp_to_request(stage: StageDescriptor, output_tokens: float) -> float:
    """The request's own limit bounds what can come out."""
    return output_tokens if stage.max_tokens is None else min(output_tokens, stage.max_tokens)


def nominal_s(profile: ModelProfile | None, prompt_tokens: int, output_tokens: float) -> float:
    """Eq 2 at batch 1, seconds; of an engine that nobody has measured, a guess."""
    if profile is None:
        return UNKNOWN_PROMPT_S * prompt_tokens + UNKNOWN_TOKEN_S * output_tokens
    return estimate_execution_s(profile, prompt_tokens, output_tokens)
