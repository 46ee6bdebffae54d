"""Orders by size, with aging: the smallest first, and nobody waits for ever.

key = size + a x arrival. A stage that has waited t seconds is as good as one that is a x t smaller
and arrives now; written with the arrival instead of the wait it never changes while the stage
waits, so heaps stay valid (algorithms section 3).

Waiting bound. Sizes are at least 0, so a stage of size s is overtaken by none that becomes ready
more than s / a seconds after it (`overtaken_for_s`).

Sizes are seconds of work, or tokens: then a counts tokens of `TOKEN_S` each.
"""

from __future__ import annotations

from abc import abstractmethod
from math import inf

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs

TOKEN_S = 0.02
"""Seconds that one output token is worth where sizes are tokens; sets the speed of aging only."""


class Aged(OrderingPolicy):
    """Key = size + a x arrival of the stage.

    Args:
        policy: `aging_s` is a, in seconds of work per second waited.
    """

    unit_s: float = 1.0
    """Seconds that one unit of size is worth."""

    def __init__(self, policy: PolicySpec) -> None:
        self._rate = policy.aging_s / self.unit_s
        self._costs = Costs()

    def use(self, costs: Costs) -> None:
        """Price stages by these from now on."""
        self._costs = costs

    @abstractmethod
    def size(self, stage: StageDescriptor, job: JobState, prediction: Prediction) -> float:
        """What is ordered by, at least 0, in units of `unit_s`; asked once per stage."""

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,
        prediction: Prediction,
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Size and aging."""
        return max(0.0, self.size(stage, job, prediction)) + self._rate * stage.arrival_s

    def overtaken_for_s(self, size: float) -> float:
        """For how long after a stage of this size becomes ready later ones may overtake it."""
        return size / self._rate if self._rate > 0.0 else inf
