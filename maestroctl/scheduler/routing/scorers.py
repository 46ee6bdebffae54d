"""How good an open place is for a stage, from 0 to 1."""

from __future__ import annotations

from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.fleet_state import Place


class ReadinessScorer:
    """1 when an engine of the model is awake there, 0.5 when one is about to be, else 0."""

    name = "readiness"

    def score(self, stage: StageState, place: Place) -> float:  # noqa: ARG002
        """From 0 to 1."""
        return place.readiness


class LoadScorer:
    """1 on an empty node, falling with the stages of ours that are on it, of any model."""

    name = "load"

    def score(self, stage: StageState, place: Place) -> float:  # noqa: ARG002
        """From 0 to 1."""
        return 1.0 / (1 + place.node.in_flight)
