"""Policy names, as `[policy]` of a fleet file spells them.

A new policy is one file, its test file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import TypeVar

from maestroctl.domain.policy import PolicySpec, default_routing
from maestroctl.errors import ConfigError
from maestroctl.scheduler.node.degradation_policies import DEGRADATION_POLICIES
from maestroctl.scheduler.node.residency import RESIDENCY_POLICIES
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.edf import Edf
from maestroctl.scheduler.ordering.fcfs import Fcfs
from maestroctl.scheduler.ordering.las import Las
from maestroctl.scheduler.ordering.ltr import Ltr
from maestroctl.scheduler.ordering.mlfq import Mlfq
from maestroctl.scheduler.ordering.oracle_slo import OracleSlo
from maestroctl.scheduler.ordering.oracle_srtf import OracleSrtf
from maestroctl.scheduler.ordering.oracle_stjf import OracleStjf
from maestroctl.scheduler.ordering.sjf import Sjf
from maestroctl.scheduler.ordering.stjf import Stjf
from maestroctl.scheduler.ordering.workflow_slo import WorkflowSlo
from maestroctl.scheduler.ordering.workflow_srtf import WorkflowSrtf
from maestroctl.scheduler.routing.affinity import make_affinity
from maestroctl.scheduler.routing.balanced_choice import (
    BalancedChoice,
    make_fastest,
    make_most_confident,
    paper_latency_s,
)
from maestroctl.scheduler.routing.baseline_choices import LeastLoaded, RoundRobin
from maestroctl.scheduler.routing.bin_packing import make_bin_packing
from maestroctl.scheduler.routing.cross_cluster import make_maestro, make_maestroctl
from maestroctl.scheduler.routing.least_loaded import make_least_loaded
from maestroctl.scheduler.routing.look_ahead import LookAhead, NoLookAhead, WorkflowLookAhead
from maestroctl.scheduler.routing.model_choice import FirstModel, ModelChoice
from maestroctl.scheduler.routing.nearest import make_nearest
from maestroctl.scheduler.routing.pipeline import RoutingPolicy
from maestroctl.scheduler.routing.power_of_two import make_power_of_two
from maestroctl.scheduler.routing.priced_choice import PricedChoice
from maestroctl.scheduler.routing.round_robin import make_round_robin
from maestroctl.scheduler.routing.single_node import make_single_node

ORDERINGS: Mapping[str, Callable[[PolicySpec], OrderingPolicy]] = {
    "fcfs": lambda _policy: Fcfs(),
    "edf": lambda _policy: Edf(),
    "sjf": Sjf,
    "las": Las,
    "mlfq": Mlfq,
    "ltr": Ltr,
    "workflow_srtf": WorkflowSrtf,
    "stjf": Stjf,
    "workflow_slo": WorkflowSlo,
    "oracle_srtf": OracleSrtf,
    "oracle_stjf": OracleStjf,
    "oracle_slo": OracleSlo,
}
ROUTINGS: Mapping[str, Callable[[PolicySpec], RoutingPolicy]] = {
    "single_node": make_single_node,
    "maestro": make_maestro,
    "maestroctl": make_maestroctl,
    "nearest": make_nearest,
    "round_robin": make_round_robin,
    "least_loaded": make_least_loaded,
    "power_of_two": make_power_of_two,
    "bin_packing": make_bin_packing,
    "affinity": make_affinity,
}
MODEL_CHOICES: Mapping[str, Callable[[PolicySpec], ModelChoice]] = {
    "first": lambda _policy: FirstModel(),
    "maestroctl": PricedChoice,
    "chimera_full": BalancedChoice,
    "chimera": lambda policy: BalancedChoice(policy, paper_latency_s),
    "fastest": make_fastest,
    "most_confident": make_most_confident,
    "round_robin": lambda _policy: RoundRobin(),
    "least_loaded": lambda _policy: LeastLoaded(),
}

LOOK_AHEADS: Mapping[str, Callable[[PolicySpec], LookAhead]] = {
    "workflow": lambda _policy: WorkflowLookAhead(),
    "none": lambda _policy: NoLookAhead(),
}

KNOWN_POLICIES: Mapping[str, Collection[str]] = {
    "ordering": tuple(ORDERINGS),
    "routing": tuple(ROUTINGS),
    "model_choice": tuple(MODEL_CHOICES),
    "residency": tuple(RESIDENCY_POLICIES),
    "degradation": tuple(DEGRADATION_POLICIES),
    "look_ahead": tuple(LOOK_AHEADS),
}
"""Names per key of ``[policy]``, for checking a file before anything starts."""

PolicyT = TypeVar("PolicyT")


def make_ordering(policy: PolicySpec) -> OrderingPolicy:
    """The ordering policy that is configured.

    Raises:
        ConfigError: no such policy.
    """
    return _make(ORDERINGS, policy.ordering, "ordering", policy)


def make_routing(policy: PolicySpec) -> RoutingPolicy:
    """The routing policy that is configured.

    Raises:
        ConfigError: no such policy.
    """
    return _make(ROUTINGS, policy.routing or default_routing(1), "routing", policy)


def make_model_choice(policy: PolicySpec) -> ModelChoice:
    """The model choice that is configured.

    Raises:
        ConfigError: no such policy.
    """
    return _make(MODEL_CHOICES, policy.model_choice, "model_choice", policy)


def make_look_ahead(policy: PolicySpec) -> LookAhead:
    """The look-ahead that is configured.

    Raises:
        ConfigError: no such policy.
    """
    return _make(LOOK_AHEADS, policy.look_ahead, "look_ahead", policy)


def _make(
    known: Mapping[str, Callable[[PolicySpec], PolicyT]], name: str, key: str, policy: PolicySpec
) -> PolicyT:
    factory = known.get(name)
    if factory is None:
        near = get_close_matches(name, known, n=1)
        raise ConfigError(
            f"no {key} policy is called {name!r}; there are: {', '.join(known)}",
            key=f"policy.{key}",
            hint=f"did you mean {near[0]!r}?" if near else None,
        )
    return factory(policy)
