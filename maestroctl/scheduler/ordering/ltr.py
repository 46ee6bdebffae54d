"""Learning to rank: the order that a model learnt, with aging. The score comes in the event.

Scores count as output tokens: a predictor that ranks on another scale ages faster or slower.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import TOKEN_S, Aged


class Ltr(Aged):
    """Size = `Prediction.rank_score`; scores below 0 count as 0."""

    unit_s = TOKEN_S

    def size(
        self,
        stage: StageDescriptor,  # noqa: ARG002
        job: JobState,  # noqa: ARG002
        prediction: Prediction,
    ) -> float:
        """Score."""
        return prediction.rank_score
