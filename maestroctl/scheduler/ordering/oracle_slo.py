"""`workflow_slo` with the truth: bounds what better predictions could give that order.

The tokens of parallel branches are summed, as if they ran one after the other: the simulator's
truth says no more. So for jobs with a fan-out it is no upper bound.
"""

from __future__ import annotations

from maestroctl.scheduler.ordering.slack import Slack


class OracleSlo(Slack):
    """The same rule; the simulator hands it true totals."""
