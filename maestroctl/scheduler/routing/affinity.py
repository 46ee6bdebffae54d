"""`affinity`: back to where the job's last stage of the role ran, for its prefixes (M Table VIII).

Without such a place, or when it is full: bin packing. Weights make the order lexicographic.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import FitScorer, HomeScorer, ReadinessScorer


def make_affinity(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(
        COMMON_FILTERS,
        ((8.0, HomeScorer()), (4.0, ReadinessScorer()), (1.0, FitScorer())),
        MaxScorePicker(),
    )
