"""`workflow_slo` with the truth: bounds what better predictions could give that order.

The simulator's truth sums the tokens of parallel branches; which part of them is on the longest one
is learned from earlier jobs. So for jobs with a fan-out it is no upper bound.
"""

from __future__ import annotations

from maestroctl.scheduler.ordering.slack import Slack


class OracleSlo(Slack):
    """The same rule; the simulator hands it true totals."""
