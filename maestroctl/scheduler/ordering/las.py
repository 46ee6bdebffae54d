"""Least attained service first: who has had least goes first. Needs no prediction."""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import Aged


class Las(Aged):
    """Size = execution and tool seconds that the job has had, with aging."""

    def size(
        self,
        stage: StageDescriptor,  # noqa: ARG002
        job: JobState,
        prediction: Prediction,  # noqa: ARG002
    ) -> float:
        """Seconds."""
        return job.attained_s
