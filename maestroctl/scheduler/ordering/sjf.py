"""Shortest job first, where the job is the request: this stage's predicted seconds, with aging.

Blind to the workflow: what follows the stage does not count.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import Aged
from maestroctl.scheduler.ordering.costs import clamp_to_request


class Sjf(Aged):
    """Size = T_exec (Maestro Eq 2) at the predicted median."""

    def size(
        self,
        stage: StageDescriptor,
        job: JobState,  # noqa: ARG002
        prediction: Prediction,
    ) -> float:
        """Seconds."""
        return self._costs.alone_s(stage, clamp_to_request(stage, prediction.output_q50))
