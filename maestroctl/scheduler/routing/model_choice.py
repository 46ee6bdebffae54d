"""Which of a stage's candidate models may serve it, decided when it becomes ready.

The choice is made again when nothing can serve the chosen model any more (its node is lost, or
refused the stage for good). It may name several models in order of preference: then the first that
has a free slot serves the stage.

See also: `balanced_choice` (Chimera), `baseline_choices`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.records import Candidate
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.fleet_state import FleetState


class ModelDecision(NamedTuple):
    """Models that may serve the stage, best first; never empty."""

    models: tuple[ModelName, ...]
    reason: str
    candidates: tuple[Candidate, ...] = ()


class ModelChoice(ABC):
    """Narrows a stage's candidates.

    The `on_` hooks tell what became of stages, those with a single candidate included.
    """

    @abstractmethod
    def choose(self, stage: StageState, fleet: FleetState, now_s: float) -> ModelDecision:
        """Decide; asked only where there is more than one candidate."""

    def on_models_set(self, stage: StageState) -> None:  # noqa: B027 - a hook, not abstract
        """`stage.models` or `stage.prediction` of a stage that lives is new."""

    def on_stage_progressed(self, stage: StageState) -> None:  # noqa: B027
        """`stage.output_tokens` have come."""

    def on_stage_over(self, stage: StageState) -> None:  # noqa: B027
        """The stage is resolved; its predicted tokens are no longer in flight."""

    def on_job_gone(self, job_id: JobId) -> None:  # noqa: B027
        """The job is over or forgotten: drop its assignment."""


class FirstModel(ModelChoice):
    """The first candidate, in the user's order, that some connected node can serve.

    A model whose engines have all failed counts only when every candidate is in that state.
    While no node can serve any, all of them stay open: whichever node connects first decides.
    """

    def choose(self, stage: StageState, fleet: FleetState, now_s: float) -> ModelDecision:  # noqa: ARG002
        """Decide."""
        startable = startable_models(stage, fleet)
        if startable:
            return ModelDecision(startable[:1], "the first candidate that a node can serve")
        return fallback(stage, fleet)


def startable_models(stage: StageState, fleet: FleetState) -> tuple[ModelName, ...]:
    """Candidates that some connected node can serve, in the user's order.

    A place whose engines have all failed does not count.
    """
    return tuple(model for model in stage.stage.candidates if _is_startable(model, stage, fleet))


def _is_startable(model: ModelName, stage: StageState, fleet: FleetState) -> bool:
    return any(place.failure is None for place in fleet.usable((model,), stage.excluded))


def fallback(stage: StageState, fleet: FleetState) -> ModelDecision:
    """What to do where no candidate is startable."""
    for model in stage.stage.candidates:
        if next(fleet.usable((model,), stage.excluded), None) is not None:
            return ModelDecision((model,), "every candidate's engine has failed; the first of them")
    return ModelDecision(stage.stage.candidates, "no connected node can serve any candidate")
