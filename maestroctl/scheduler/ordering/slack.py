"""Orders for deadlines under overload: who needs least, among those that can still be in time.

Theory of operation. With more work than the fleet can do, some deadlines are missed whatever the
order. Going by deadline or by slack missed most of them in simulation; we think that is because
everybody is then served as late as can be, so one delay more makes all of them late. More are kept
when the jobs that are given up are the large ones, each of which makes room for many. So the key is

    deadline + `DENSITY` x T_rem

a second of remaining work counts as `DENSITY` seconds of deadline: among jobs of like size the
earlier deadline goes first, otherwise the smaller job. The deadline is the aging, too: of two jobs
with the same window the later one is overtaken by no more than `DENSITY` x its remaining work. It
does not change while a stage waits.

When the turn of a stage comes and even its median remaining time, at the present pace of its model
and with no wait any more, ends after the deadline, serving it keeps no deadline (`late_key`): it
moves behind the others, where the shortest goes first, with aging. There it gets what is left over,
and `LATE_SHARE` of the dispatches. The judgement is by the median and not by a cautious quantile,
which under overload would give up jobs that would have been in time. Nothing is ever stopped
because its deadline passed: a late answer is still an answer (docs/decisions/0009).

Jobs without a deadline are never late; they go after those with one that can be met and before the
late ones, the shortest first, with aging.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.ordering.edf import NO_DEADLINE_S, among_equals_s, deadline_of
from maestroctl.scheduler.ordering.stjf import total_tokens

DENSITY = 15.0
"""Seconds of deadline that a second of remaining work counts as: aging of 1 s per 15 s waited.
Chosen by SLO attainment among 15, 30 and 60, on one seed of the cell that docs/experiments.md
reports, where they differ by less than 2 points; that page says what speaks against it."""


class Slack(OrderingPolicy):
    """Key = deadline + `DENSITY` x T_rem, in seconds.

    Args:
        policy: `aging_s` is the aging of those without a deadline and of late ones.
    """

    can_lapse = True
    reserves_slots = True

    def __init__(self, policy: PolicySpec) -> None:
        self._rate = policy.aging_s
        self._costs = Costs()

    def use(self, costs: Costs) -> None:
        """Price stages by these from now on."""
        self._costs = costs

    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem at batch 1: of the predicted total where there is one, else by Eqs 7 and 8."""
        if prediction.total_tokens.get(stage.candidates[0]):
            return self._costs.alone_s(stage, total_tokens(stage, prediction))
        return self._costs.remaining_alone_s(stage, prediction)

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,
        prediction: Prediction,
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Seconds; a time of the core plus work."""
        remaining_s = self.remaining_s(stage, prediction)
        deadline_s = deadline_of(stage, job)
        if deadline_s is None:
            return NO_DEADLINE_S + remaining_s + self._rate * stage.arrival_s
        return deadline_s + DENSITY * remaining_s + among_equals_s(stage, job)

    def late_key(self, stage: StageState, now_s: float) -> float | None:
        """Its remaining time and aging, when it most likely cannot be in time any more."""
        descriptor = stage.stage
        deadline_s = deadline_of(descriptor, stage.job)
        if deadline_s is None:
            return None
        remaining_s = self.remaining_s(descriptor, stage.prediction)
        if now_s + remaining_s * self._costs.pace(descriptor) <= deadline_s:
            return None
        return 2.0 * NO_DEADLINE_S + remaining_s + self._rate * descriptor.arrival_s
