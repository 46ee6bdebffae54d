"""Ours: least slack first among the jobs that can still meet their deadline.

T_rem is the critical path at the 0.75 quantile, so that a job counts as late when it most likely
is, and starts early enough when it runs long.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.ordering.slack import Slack


class WorkflowSlo(Slack):
    """Slack by Eqs 2 and 8."""

    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """Seconds."""
        return self._costs.remaining_path_s(stage, prediction)
