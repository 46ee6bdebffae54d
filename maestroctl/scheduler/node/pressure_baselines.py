"""Baselines for memory pressure: what servers without Algorithm 2 do."""

from __future__ import annotations

from collections.abc import Sequence

from maestroctl.scheduler.node.degradation import (
    DegradationPlan,
    DegradationPolicy,
    DegradationStep,
    Item,
    Need,
    usable_choices,
)
from maestroctl.scheduler.node.residency import GiveWayAction, GiveWayChoice, VictimView


class EvictAll(DegradationPolicy):
    """Baseline: everybody who may be stopped is stopped, idle or not, whatever is missing."""

    def offered(
        self, view: VictimView, *, may_drain: bool, max_level: int
    ) -> Sequence[GiveWayChoice]:
        """The strongest choice that is not a sleep."""
        choices = usable_choices(view, may_drain=may_drain, max_level=max_level)
        return [c for c in choices if c.action is not GiveWayAction.SLEEP][-1:]

    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        picks = [(view, choice) for view, (choice,) in items if frees_some(need, choice)]
        if not picks or not (need.partial or need.is_met([choice for _, choice in picks])):
            return None
        return DegradationPlan(tuple(DegradationStep(view.engine_id, c) for view, c in picks))


class AbortFirst(DegradationPolicy):
    """Baseline: the least recently used engine is stopped at once, its requests aborted."""

    def offered(
        self,
        view: VictimView,
        *,
        may_drain: bool,  # noqa: ARG002
        max_level: int,  # noqa: ARG002
    ) -> Sequence[GiveWayChoice]:
        """The strongest choice, however patient the need may be."""
        return view.choices[-1:]

    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        steps: list[DegradationStep] = []
        for view, (choice,) in sorted(items, key=lambda i: (i[0].last_used_s, i[0].engine_id)):
            if need.is_met([step.choice for step in steps]):
                break
            if frees_some(need, choice):
                steps.append(DegradationStep(view.engine_id, choice))
        if not need.partial and not need.is_met([step.choice for step in steps]):
            return None
        return DegradationPlan(tuple(steps))


def frees_some(need: Need, choice: GiveWayChoice) -> bool:
    """Does it free anything of what is missing?"""
    return any(choice.freed_bytes.get(device, 0) > 0 for device in need.devices)
