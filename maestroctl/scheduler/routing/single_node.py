"""`single_node`: for one machine, and a plain baseline for several.

The node that has the model awake and a slot free, else the one with fewest stages. Readiness
weighs more than load can ever add up to, so the order of the two is lexicographic; an engine that
is about to be awake is worth joining before a second one is woken elsewhere.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.routing.filters import InteractiveReserve, NotExcluded, NotWhereItFailed
from maestroctl.scheduler.routing.pipeline import MaxScorePicker, Pipeline, RoutingPolicy
from maestroctl.scheduler.routing.scorers import LoadScorer, ReadinessScorer


def make_single_node(policy: PolicySpec) -> RoutingPolicy:  # noqa: ARG001
    """The pipeline; it has no weights of its own."""
    return Pipeline(
        filters=(NotExcluded(), NotWhereItFailed(), InteractiveReserve()),
        scorers=((2.0, ReadinessScorer()), (1.0, LoadScorer())),
        picker=MaxScorePicker(),
    )
