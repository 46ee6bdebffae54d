"""A degradation policy that reaches for every rung, to exercise what the core does with them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from maestroctl.domain.ids import DeviceName
from maestroctl.scheduler.node.degradation import DegradationPlan, LruDegradation
from maestroctl.scheduler.node.residency import VictimView


class HarshDegradation:
    """Leaves each engine one random rung of its chain; busy ones are never merely drained.

    Args:
        seed: of its own dice.
        max_level: highest level it uses.
    """

    def __init__(self, seed: int = 0, max_level: int = 5) -> None:
        self._rng = random.Random(seed)
        self._max_level = max_level
        self._within = LruDegradation(max_level)

    def plan(
        self,
        deficit: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
        host_free_bytes: int,
        *,
        may_drain: bool,
        partial: bool = False,
        max_level: int = 5,  # noqa: ARG002
    ) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        views = []
        for view in ranked:
            able = [
                choice
                for choice in view.choices
                if choice.level <= self._max_level and (choice.level >= 3 or not view.busy)
            ]
            if able:
                views.append(replace(view, choices=(self._rng.choice(able),)))
        plan = self._within.plan(deficit, views, host_free_bytes, may_drain=True, partial=partial)
        if plan is None:  # the dice were unlucky: there may be a plan all the same
            plan = self._within.plan(deficit, ranked, host_free_bytes, may_drain=may_drain)
        return plan
