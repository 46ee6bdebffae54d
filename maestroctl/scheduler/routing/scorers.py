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


class DistanceScorer:
    """1 without a round trip, falling with it."""

    name = "distance"

    def score(self, stage: StageState, place: Place) -> float:  # noqa: ARG002
        """From 0 to 1."""
        return 1.0 / (1.0 + max(0.0, place.node.rtt_s))


class TurnScorer:
    """1 for a place that was never sent a stage, lower the later its last one was sent."""

    name = "turn"

    def score(self, stage: StageState, place: Place) -> float:  # noqa: ARG002
        """From 0 to 1."""
        return 1.0 / (1 + place.last_seq)


class FitScorer:
    """Best fit: 1 where what is free would be filled, 0 where others had to make room.

    Awake engines are filled by their slots, free memory by the model that would be brought up.
    """

    name = "fit"

    def score(self, stage: StageState, place: Place) -> float:  # noqa: ARG002
        """From 0 to 1."""
        if place.readiness < 1.0:
            return place.tightness
        return min(1.0, (place.in_flight + 1) / place.slots) if place.slots else 0.0


class HomeScorer:
    """1 where the job's last stage of this role ran: its prompt is in the prefix cache there."""

    name = "home"

    def score(self, stage: StageState, place: Place) -> float:
        """From 0 to 1."""
        homes = stage.job.homes
        if homes is None:
            return 0.0
        home = homes.get(stage.stage.role)
        return 1.0 if home is not None and home[0] == place.name else 0.0
