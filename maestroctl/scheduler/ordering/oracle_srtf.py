"""`workflow_srtf` with the truth: the simulator hands the tokens of this and all later stages.

Bounds what better predictions could give that order. Later prompts and tools it does not know, so
it is an oracle of output lengths. Nothing is smoothed: there is no noise to smooth.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import Aged
from maestroctl.scheduler.ordering.stjf import total_tokens


class OracleSrtf(Aged):
    """Size = seconds to decode all that the job still produces, and this prompt's prefill."""

    reserves_slots = True

    def size(
        self,
        stage: StageDescriptor,
        job: JobState,  # noqa: ARG002
        prediction: Prediction,
    ) -> float:
        """Seconds."""
        return self._costs.alone_s(stage, total_tokens(stage, prediction))
