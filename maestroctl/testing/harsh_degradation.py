"""A degradation policy that reaches for every rung, to exercise what the core does with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from maestroctl.scheduler.node.degradation import DegradationPlan, DegradationPolicy, Item, Need
from maestroctl.scheduler.node.lru_degradation import LruDegradation
from maestroctl.scheduler.node.residency import GiveWayChoice, VictimView


class HarshDegradation(DegradationPolicy):
    """Leaves each engine one random rung of its chain; busy ones are never merely drained.

    Args:
        seed: of its own dice.
        max_level: highest level it uses.
    """

    def __init__(self, seed: int = 0, max_level: int = 5) -> None:
        self._rng = random.Random(seed)
        self._max_level = max_level
        self._within = LruDegradation(max_level)

    def offered(
        self,
        view: VictimView,
        *,
        may_drain: bool,  # noqa: ARG002
        max_level: int,  # noqa: ARG002
    ) -> Sequence[GiveWayChoice]:
        """Whatever ends the need at once."""
        return [
            choice
            for choice in view.choices
            if choice.level <= self._max_level and (choice.level >= 3 or not view.busy)
        ]

    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        plan = self._within.choose(need, [(v, [self._rng.choice(cs)]) for v, cs in items])
        if plan is None:  # the dice were unlucky: there may be a plan all the same
            plan = self._within.choose(need, items)
        return plan
