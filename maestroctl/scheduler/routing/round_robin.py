"""`round_robin`: every place in turn: the one whose last stage was sent longest ago; a baseline."""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import COMMON_FILTERS
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import TurnScorer


def make_round_robin(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(COMMON_FILTERS, ((1.0, TurnScorer()),), MaxScorePicker())
