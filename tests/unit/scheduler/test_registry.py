"""Policy names resolve, or say what there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maestroctl.domain.policy import PolicySpec
from maestroctl.errors import ConfigError
from maestroctl.scheduler.ordering.fcfs import Fcfs
from maestroctl.scheduler.registry import (
    KNOWN_POLICIES,
    make_look_ahead,
    make_model_choice,
    make_ordering,
    make_routing,
)
from maestroctl.scheduler.routing.model_choice import FirstModel
from maestroctl.scheduler.routing.pipeline import Pipeline
from maestroctl.testing.coordinator_builders import limited, make_fleet
from maestroctl.testing.plain_policy import PLAIN


def test_plain_names_resolve() -> None:
    assert isinstance(make_ordering(PLAIN), Fcfs)
    assert isinstance(make_routing(PLAIN), Pipeline)
    assert isinstance(make_model_choice(PLAIN), FirstModel)


def test_every_default_of_a_policy_section_is_known() -> None:
    for nodes in (["n1"], ["n1", "n2"]):
        policy = make_fleet(nodes=nodes, policy=PolicySpec()).policy
        for field, names in KNOWN_POLICIES.items():
            assert getattr(policy, field) in names


@pytest.mark.parametrize(
    ("make", "field", "known"),
    [
        (make_ordering, "ordering", "fcfs"),
        (make_routing, "routing", "single_node"),
        (make_model_choice, "model_choice", "first"),
        (make_look_ahead, "look_ahead", "workflow"),
    ],
)
def test_an_unknown_policy_is_an_error_that_lists_the_known_ones(
    make: Callable[[PolicySpec], object], field: str, known: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(limited(**{field: known + "x"}))
    assert caught.value.key == f"policy.{field}"
    assert known in caught.value.message
    assert caught.value.hint == f"did you mean {known!r}?"
