"""`workflow_slo` with the truth: bounds what better predictions could give that order.

The tokens of parallel branches are summed, as if they ran one after the other: the simulator's
truth says no more. So for jobs with a fan-out it is no upper bound.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.ordering.slack import Slack
from maestroctl.scheduler.ordering.stjf import total_tokens


class OracleSlo(Slack):
    """Slack by the true tokens of this and all later stages."""

    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """Seconds."""
        return self._costs.execution_s(stage, total_tokens(stage, prediction))
