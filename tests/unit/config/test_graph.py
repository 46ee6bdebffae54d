"""Cycles, ancestors and loop bodies, also beside the slow and obvious way."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.config import workflow_from_document
from maestroctl.config.graph import (
    Edges,
    Loop,
    Readable,
    add_loop_ends,
    all_ancestors,
    depths,
    find_cycle,
    find_loops,
    in_order,
)
from maestroctl.errors import ConfigErrors

CHAIN: Edges = {"a": (), "b": ("a",), "c": ("b",), "d": ("b",), "e": ("c", "d")}


def test_cycle_is_given_in_the_direction_of_the_work() -> None:
    assert find_cycle({"a": ("c",), "b": ("a",), "c": ("b",)}) == ("a", "b", "c", "a")


@pytest.mark.parametrize("after", [{}, {"a": ()}, CHAIN, {"a": ("b",), "b": ()}], ids=str)
def test_graph_without_a_cycle_has_none(after: Edges) -> None:
    assert find_cycle(after) == ()


def test_ancestors_and_depths() -> None:
    assert all_ancestors(CHAIN)["e"] == {"a", "b", "c", "d"}
    assert depths(CHAIN) == {"a": 0, "b": 1, "c": 2, "d": 2, "e": 3}


def test_body_of_a_loop_is_what_lies_between() -> None:
    (loop,) = find_loops(CHAIN, {"e": "b"})
    assert loop == Loop("b", "e", frozenset("bcde"))
    (own,) = find_loops(CHAIN, {"c": "c"})
    assert own.body == {"c"}


def test_loop_that_leads_nowhere_is_left_out() -> None:
    assert find_loops(CHAIN, {"c": "d"}) == []


def test_what_waits_for_the_inside_of_a_loop_waits_for_its_end() -> None:
    loops = find_loops(CHAIN, {"c": "b"})
    waits = add_loop_ends(CHAIN, loops)
    assert waits == {"a": (), "b": ("a",), "c": ("b",), "d": ("b", "c"), "e": ("c", "d")}
    readable = Readable(loops, waits)
    assert readable.by("d") == {"a", "b", "c"}
    assert readable.by("b") == {"a", "b", "c"}
    assert readable.by("a") == frozenset()


@st.composite
def graphs(draw: st.DrawFn, *, cycles: bool = False) -> dict[str, tuple[str, ...]]:
    names = [f"s{n}" for n in range(draw(st.integers(1, 7)))]
    after = {}
    for index, name in enumerate(names):
        choices = names if cycles else names[:index]
        edges = draw(st.lists(st.sampled_from(choices), unique=True)) if choices else []
        after[name] = tuple(edges)
    order = draw(st.permutations(names))
    return {name: after[name] for name in order}


@given(graphs(cycles=True))
def test_a_cycle_is_found_when_there_is_one(after: dict[str, tuple[str, ...]]) -> None:
    cycle = find_cycle(after)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert all(a in after[b] for a, b in pairwise(cycle))
    else:
        left = set(after)
        while ready := {name for name in left if not left & set(after[name])}:
            left -= ready
        assert not left


@given(graphs())
def test_order_puts_every_step_after_what_it_waits_for(after: dict[str, tuple[str, ...]]) -> None:
    order = in_order(after)
    assert sorted(order) == sorted(after)
    assert all(order.index(e) < order.index(name) for name in after for e in after[name])


@given(graphs())
def test_ancestors_are_what_can_be_reached(after: dict[str, tuple[str, ...]]) -> None:
    for name, found in all_ancestors(after).items():
        reached: set[str] = set()
        stack = list(after[name])
        while stack:
            step = stack.pop()
            reached.add(step)
            stack.extend(after[step])
        assert found == reached


@pytest.mark.parametrize(
    ("steps", "part"),
    [
        ([{"name": f"s{n}", "prompt": "x"} for n in range(201)], "201 steps, at most 200"),
        (
            [
                {"name": f"s{n}", "prompt": "x", "repeat": {"back_to": f"s{n}", "until": "True"}}
                for n in range(33)
            ],
            "33 loops, at most 32",
        ),
        (
            [{"name": f"s{n}", "prompt": "x" * 60_000} for n in range(9)],
            "540000 characters of templates",
        ),
    ],
    ids=["steps", "loops", "templates"],
)
def test_what_no_person_wrote_is_refused(steps: list[dict[str, object]], part: str) -> None:
    with pytest.raises(ConfigErrors, match=part):
        workflow_from_document({"step": steps})


def test_largest_workflow_is_checked_in_seconds() -> None:
    steps: list[dict[str, object]] = []
    for n in range(200):
        earlier = [f"s{m}" for m in range(n)]
        step: dict[str, object] = {"name": f"s{n}", "after": earlier}
        step["prompt"] = "{% for x in [1] %}{{ input }}{{ visit }}{% endfor %}" * 48 + str(n)
        if n >= 168:
            step["repeat"] = {"back_to": "s0", "until": "'OK' in output"}
        steps.append(step)
    started = time.process_time()
    workflow_from_document({"step": steps})
    assert time.process_time() - started < 20
