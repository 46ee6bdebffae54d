"""Orders by slack: who must start first to be in time, as long as being in time is possible.

Theory of operation. slack = deadline - now - T_rem. "Now" is the same for all who wait, so the
order by slack is the order by *latest start* = deadline - T_rem, which does not change while a
stage waits. A stage whose latest start has passed is late: serving it first would make others late
and save nothing. The core asks of the stage that would go next (`late_key`); a late one moves
behind the others, where the shortest goes first, with aging. There it gets what is left over, and
`LATE_SHARE` of the dispatches. Late stages have the smallest keys of all when they lapse, so
looking at the head finds every one of them.

Jobs without a deadline are never late; they go after those with one that can be met and before the
late ones, the shortest first, with aging.
"""

from __future__ import annotations

from abc import abstractmethod

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.ordering.edf import NO_DEADLINE_S, among_equals_s, deadline_of


class Slack(OrderingPolicy):
    """Key = latest start, in the core's time.

    Args:
        policy: `aging_s` is the aging of those without a deadline and of late ones.
    """

    can_lapse = True

    def __init__(self, policy: PolicySpec) -> None:
        self._rate = policy.aging_s
        self._costs = Costs()

    def use(self, costs: Costs) -> None:
        """Price stages by these from now on."""
        self._costs = costs

    @abstractmethod
    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem: seconds that must pass before the job can be finished."""

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,
        prediction: Prediction,
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Seconds of the core's time."""
        remaining_s = self.remaining_s(stage, prediction)
        deadline_s = deadline_of(stage, job)
        if deadline_s is None:
            return NO_DEADLINE_S + remaining_s + self._rate * stage.arrival_s
        return deadline_s - remaining_s + among_equals_s(stage, job)

    def late_key(self, stage: StageState, now_s: float) -> float | None:
        """Its remaining time and aging, once its latest start has passed."""
        if stage.key >= now_s:
            return None
        deadline_s = deadline_of(stage.stage, stage.job)
        if deadline_s is None:
            return None
        remaining_s = max(0.0, deadline_s - stage.key)
        return 2.0 * NO_DEADLINE_S + remaining_s + self._rate * stage.stage.arrival_s
