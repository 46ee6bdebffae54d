"""Choices that know nothing of the request: what a plain load balancer in front of models does."""

from __future__ import annotations

from maestroctl.domain.ids import ModelName
from maestroctl.domain.records import Candidate
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.assigned_choice import AssignedChoice
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.model_choice import ModelDecision

MAX_SETS = 1024
"""Candidate sets whose turn is kept; callers may name any list of models."""


class RoundRobin(AssignedChoice):
    """Jobs go to the candidates in turn."""

    def __init__(self) -> None:
        super().__init__()
        self._turn: dict[tuple[ModelName, ...], int] = {}

    def pick(
        self,
        stage: StageState,  # noqa: ARG002
        startable: tuple[ModelName, ...],
        fleet: FleetState,  # noqa: ARG002
    ) -> ModelDecision:
        """The next one."""
        turn = self._turn.pop(startable, 0)
        self._turn[startable] = (turn + 1) % len(startable)
        if len(self._turn) > MAX_SETS:
            del self._turn[next(iter(self._turn))]
        return ModelDecision((startable[turn],), "its turn")


class LeastLoaded(AssignedChoice):
    """The model with fewest stages, waiting ones included, per slot of its engines."""

    def pick(
        self, stage: StageState, startable: tuple[ModelName, ...], fleet: FleetState
    ) -> ModelDecision:
        """The first of those with least load."""
        loads = {model: self._load(model, stage, fleet) for model in startable}
        best = min(startable, key=lambda model: loads[model])
        candidates = tuple(
            Candidate(model, load, {"load": load}, None if model == best else "more loaded")
            for model, load in loads.items()
        )
        return ModelDecision((best,), "least stages per slot", candidates)

    def _load(self, model: ModelName, stage: StageState, fleet: FleetState) -> float:
        slots = sum(
            place.slots for place in fleet.usable((model,), stage.excluded) if place.failure is None
        )
        return self.monitor.num_live(model) / max(1, slots)
