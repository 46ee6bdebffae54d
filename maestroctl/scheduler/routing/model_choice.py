"""Which of a stage's candidate models may serve it, decided when it becomes ready.

The choice is made again when nothing can serve the chosen model any more (its node is lost, or
refused the stage for good). It may name several models in order of preference: then the first that
has a free slot serves the stage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.records import Candidate
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.routing.fleet_state import FleetState


class ModelDecision(NamedTuple):
    """Models that may serve the stage, best first; never empty."""

    models: tuple[ModelName, ...]
    reason: str
    candidates: tuple[Candidate, ...] = ()


class ModelChoice(ABC):
    """Narrows a stage's candidates."""

    @abstractmethod
    def choose(self, stage: StageState, fleet: FleetState, now_s: float) -> ModelDecision:
        """Decide; asked only where there is more than one candidate."""

    def on_stage_ended(  # noqa: B027 - a hook, not an abstract method
        self, stage: StageDescriptor, job: JobState, output_tokens: int
    ) -> None:
        """A stage ended; its predicted tokens are no longer in flight."""

    def on_job_gone(self, job_id: JobId) -> None:  # noqa: B027
        """The job is over or forgotten: drop its assignment."""


class FirstModel(ModelChoice):
    """The first candidate, in the user's order, that some connected node can serve.

    A model whose engines have all failed counts only when every candidate is in that state.
    While no node can serve any, all of them stay open: whichever node connects first decides.
    """

    def choose(self, stage: StageState, fleet: FleetState, now_s: float) -> ModelDecision:  # noqa: ARG002
        """Decide."""
        candidates = stage.stage.candidates
        failed: ModelName | None = None
        for model in candidates:
            for place in fleet.usable((model,), stage.excluded):
                if place.failure is None:
                    return ModelDecision((model,), "the first candidate that a node can serve")
                failed = failed or model
        if failed is not None:
            return ModelDecision(
                (failed,), "every candidate's engine has failed; the first of them"
            )
        return ModelDecision(candidates, "no connected node can serve any candidate")
