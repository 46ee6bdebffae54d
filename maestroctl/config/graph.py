"""The shape of a workflow: who comes before whom, what a loop encloses, what a template may read.

Edges are the `after` lists; they form a graph without cycles. A `repeat` adds one edge back, from
its step to `back_to`. The *body* of the loop is every step on a way from `back_to` to the repeating
step, both included: these run again in every round.

A step outside the body that waits for a step inside also waits for the end of the loop, because
what is inside may run again. Loops that would then wait for each other have no meaning.

A template of step S may read

- every step that S waits for, directly or not, which has ended when S starts;
- every step of a loop body that S belongs to, S included: what it said in the round before, and
  an empty text in the first round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Edges = Mapping[str, tuple[str, ...]]
"""Step -> the steps it waits for."""


def find_cycle(after: Edges) -> tuple[str, ...]:
    """A cycle as the steps along it, the first repeated at the end; empty when there is none."""
    state: dict[str, int] = {}
    """1 = on the current way, 2 = known to be free of cycles."""
    for start in after:
        if start in state:
            continue
        way: list[str] = []
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            step, position = stack.pop()
            if position == 0:
                state[step] = 1
                way.append(step)
            earlier = after.get(step, ())
            if position == len(earlier):
                state[step] = 2
                way.pop()
                continue
            stack.append((step, position + 1))
            following = earlier[position]
            if state.get(following) == 1:
                # `way` runs against the direction of the work; turn it round for the reader.
                return tuple(reversed([*way[way.index(following) :], following]))
            if following not in state and following in after:
                stack.append((following, 0))
    return ()


def in_order(after: Edges) -> list[str]:
    """The steps, each after all it waits for. `after` has no cycle."""
    order: dict[str, None] = {}
    for start in after:
        stack = [start]
        while stack:
            missing = [earlier for earlier in after[stack[-1]] if earlier not in order]
            if missing:
                stack.extend(missing)
            else:
                order[stack.pop()] = None
    return list(order)


def all_ancestors(after: Edges) -> dict[str, frozenset[str]]:
    """For each step, every step that has ended before it starts. `after` has no cycle."""
    known: dict[str, frozenset[str]] = {}
    for step in in_order(after):
        edges = after[step]
        known[step] = frozenset(edges).union(*(known[earlier] for earlier in edges))
    return known


def depths(after: Edges) -> dict[str, int]:
    """Longest way of steps before each step. `after` has no cycle."""
    known: dict[str, int] = {}
    for step in in_order(after):
        known[step] = max((known[earlier] + 1 for earlier in after[step]), default=0)
    return known


@dataclass(frozen=True, slots=True)
class Loop:
    """One `repeat`: `closer` goes back to `back_to`; all of `body` runs again."""

    back_to: str
    closer: str
    body: frozenset[str]


def find_loops(after: Edges, repeats: Mapping[str, str]) -> list[Loop]:
    """The loops of a workflow.

    Args:
        after: edges without a cycle.
        repeats: repeating step -> `back_to`; those that lead nowhere are left out.
    """
    ancestors = all_ancestors(after)
    loops = []
    for closer, back_to in repeats.items():
        before = ancestors[closer] | {closer}
        if back_to in before:
            inside = {step for step in before if step == back_to or back_to in ancestors[step]}
            loops.append(Loop(back_to, closer, frozenset(inside)))
    return loops


def add_loop_ends(after: Edges, loops: list[Loop]) -> dict[str, tuple[str, ...]]:
    """`after`, and for steps that wait for the inside of a loop, the end of that loop.

    The rule is applied until nothing changes: the end of one loop may lie inside another.
    """
    waits = {step: list(edges) for step, edges in after.items()}
    grown = True
    while grown:
        grown = False
        for step, edges in waits.items():
            for loop in loops:
                outside = step not in loop.body and loop.closer not in edges
                if outside and not loop.body.isdisjoint(edges):
                    edges.append(loop.closer)
                    grown = True
    return {step: tuple(edges) for step, edges in waits.items()}


class Readable:
    """What templates may read, step by step.

    Args:
        loops: of the workflow.
        waits: edges with `add_loop_ends`, without a cycle.
    """

    def __init__(self, loops: list[Loop], waits: Edges) -> None:
        self._loops = loops
        self._ancestors = all_ancestors(waits)

    def by(self, step: str) -> frozenset[str]:
        """Steps that templates of `step` may read."""
        bodies = [loop.body for loop in self._loops if step in loop.body]
        return self._ancestors[step].union(*bodies)
