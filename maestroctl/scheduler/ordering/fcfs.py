"""First come, first served, by the arrival of the stage.

By stage and not by job: under job order the late stages of old jobs go before every stage of a
younger one, which is already a policy that favours long workflows. A baseline should favour
nothing; it is also what a plain proxy in front of the engines would do.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.base import OrderingPolicy


class Fcfs(OrderingPolicy):
    """Key = the time at which the stage became ready."""

    bounds_wait = False  # nobody is overtaken as it is

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,  # noqa: ARG002
        prediction: Prediction,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Seconds of the core's time."""
        return stage.arrival_s
