"""`bin_packing`: as few engines and as full as they go (M Table VIII): best fit.

An awake engine before free memory, since what is awake is packed already; then the place that is
filled most. Weights make the order lexicographic.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import FitScorer, ReadinessScorer


def make_bin_packing(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(
        COMMON_FILTERS, ((4.0, ReadinessScorer()), (1.0, FitScorer())), MaxScorePicker()
    )
