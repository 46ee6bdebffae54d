"""`nearest`: the shortest round trip with a free slot, whatever it has awake; a baseline.

Ties by load. The node nearby fills up first, and what it has to wake it wakes.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import DistanceScorer


def make_nearest(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(COMMON_FILTERS, ((1.0, DistanceScorer()),), MaxScorePicker())
