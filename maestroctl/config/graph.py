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

from collections.abc import Iterable, Mapping

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


def ancestors(after: Edges, step: str) -> frozenset[str]:
    """Every step that has ended before `step` starts."""
    seen: set[str] = set()
    stack = list(after.get(step, ()))
    while stack:
        earlier = stack.pop()
        if earlier not in seen:
            seen.add(earlier)
            stack.extend(after.get(earlier, ()))
    return frozenset(seen)


def loop_body(after: Edges, back_to: str, repeating: str) -> frozenset[str]:
    """Steps that run again when `repeating` goes back to `back_to`."""
    before = ancestors(after, repeating) | {repeating}
    return frozenset(
        step for step in before if step == back_to or back_to in ancestors(after, step)
    )


def add_loop_ends(after: Edges, loops: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """`after`, and for steps that wait for the inside of a loop, the end of that loop.

    Args:
        after: edges without a cycle.
        loops: (back_to, repeating step) of every loop.
    """
    bodies = [(repeating, loop_body(after, back_to, repeating)) for back_to, repeating in loops]
    waits = {step: list(edges) for step, edges in after.items()}
    grown = True
    while grown:
        grown = False
        for step, edges in waits.items():
            for repeating, body in bodies:
                if step not in body and repeating not in edges and not body.isdisjoint(edges):
                    edges.append(repeating)
                    grown = True
    return {step: tuple(edges) for step, edges in waits.items()}


def readable_steps(
    after: Edges, loops: Iterable[tuple[str, str]], waits: Edges, step: str
) -> tuple[frozenset[str], frozenset[str]]:
    """Steps that templates of `step` may read.

    Args:
        after: edges without a cycle.
        loops: (back_to, repeating step) of every loop.
        waits: edges with `add_loop_ends`.
        step: whose templates.

    Returns:
        (surely ended, ended only from the second round of a loop on)
    """
    ended = ancestors(waits, step)
    carried: set[str] = set()
    for back_to, repeating in loops:
        body = loop_body(after, back_to, repeating)
        if step in body:
            carried |= body
    return ended, frozenset(carried - ended)


def depths(after: Edges) -> dict[str, int]:
    """Longest way of steps before each step."""
    known: dict[str, int] = {}
    for start in after:
        stack = [start]
        while stack:
            step = stack[-1]
            missing = [earlier for earlier in after[step] if earlier not in known]
            if missing:
                stack.extend(missing)
                continue
            known[step] = max((known[earlier] + 1 for earlier in after[step]), default=0)
            stack.pop()
    return known
