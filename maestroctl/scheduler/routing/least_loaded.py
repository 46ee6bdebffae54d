"""`least_loaded`: the fewest stages of ours on the node, of any model; a baseline."""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import LoadScorer


def make_least_loaded(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(COMMON_FILTERS, ((1.0, LoadScorer()),), MaxScorePicker())
