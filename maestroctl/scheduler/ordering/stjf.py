"""Shortest total job first (Chimera sections 3.4, 3.7): all tokens that the job still needs."""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import TOKEN_S, Aged


class Stjf(Aged):
    """Size = Y, predicted output tokens of this and all later stages, with aging."""

    unit_s = TOKEN_S

    def size(
        self,
        stage: StageDescriptor,
        job: JobState,  # noqa: ARG002
        prediction: Prediction,
    ) -> float:
        """Tokens."""
        return total_tokens(stage, prediction)


def total_tokens(stage: StageDescriptor, prediction: Prediction) -> float:
    """Y on the stage's first candidate; never less than this stage alone.

    Without a prediction of the total the stage stands for its job.
    """
    total = prediction.total_tokens.get(stage.candidates[0], 0.0)
    return max(total, prediction.output_q50)
