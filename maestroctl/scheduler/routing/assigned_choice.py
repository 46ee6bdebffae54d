"""One model per job and candidate set, kept while it can still be started (C Algorithm 1, step 1).

Keeping it saves the choice, and an engine's cache of the job's earlier turns. What differs between
policies is how the first stage's model is picked.
"""

from __future__ import annotations

from abc import abstractmethod

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.activity_monitor import ActivityMonitor
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.load_balancer import job_tokens
from maestroctl.scheduler.routing.model_choice import (
    ModelChoice,
    ModelDecision,
    fallback,
    startable_models,
)


class AssignedChoice(ModelChoice):
    """Assignments, and the Activity Monitor that says what is in flight."""

    def __init__(self) -> None:
        self.monitor = ActivityMonitor()
        self._assigned: dict[JobId, dict[tuple[ModelName, ...], ModelName]] = {}

    @abstractmethod
    def pick(
        self, stage: StageState, startable: tuple[ModelName, ...], fleet: FleetState
    ) -> ModelDecision:
        """One of several models that a connected node can serve, with the reason."""

    def choose(self, stage: StageState, fleet: FleetState, now_s: float) -> ModelDecision:  # noqa: ARG002
        """Keep the job's model, else pick one."""
        startable = startable_models(stage, fleet)
        if not startable:
            return fallback(stage, fleet)
        wanted = stage.stage.candidates
        kept = self._assigned.get(stage.stage.job_id, {}).get(wanted)
        if kept in startable:
            return ModelDecision((kept,), "the job's model")
        if len(startable) == 1:
            decision = ModelDecision(startable, "the only candidate that a node can serve")
        else:
            decision = self.pick(stage, startable, fleet)
        self._assigned.setdefault(stage.stage.job_id, {})[wanted] = decision.models[0]
        return decision

    def on_models_set(self, stage: StageState) -> None:
        """Charge the job's tokens to the model (step 5)."""
        if len(stage.models) == 1:
            model = stage.models[0]
            tokens = job_tokens(model, stage.prediction)
            self.monitor.stage_ready(stage.stage_id, stage.stage.job_id, model, tokens)

    def on_stage_progressed(self, stage: StageState) -> None:
        """Tokens that came are not in flight any more."""
        self.monitor.stage_progressed(stage.stage_id, stage.output_tokens)

    def on_stage_over(self, stage: StageState) -> None:
        """Correct what was expected by what came."""
        job_goes_on = stage.job.progress is not None
        self.monitor.stage_over(stage.stage_id, stage.output_tokens, job_goes_on)

    def on_job_gone(self, job_id: JobId) -> None:
        """Forget its models and its tokens."""
        self._assigned.pop(job_id, None)
        self.monitor.job_gone(job_id)
