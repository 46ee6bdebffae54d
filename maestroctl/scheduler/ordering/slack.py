"""Orders for deadlines: by the deadline while all can be kept, by size once some cannot.

Theory of operation. While the fleet can keep every deadline, going by the deadline alone keeps them
all. With more work than that some are missed whatever the order, and the most are kept when the
jobs that are given up are the large ones, each of which makes room for many. So the key is

    deadline + w x T_rem,    w = `PRICE_S` x the share of recent jobs that were given up

a second of remaining work counts as w seconds of deadline. w is 0 while nobody is given up, and
rises with the share of jobs that are, as the price of a scarce thing does: it follows the load, and
no load has to be named. The deadline is the aging, too: of two jobs with the same window the later
one is overtaken by no more than w x its remaining work. A key does not change while its stage
waits.

Given up (`late_key`). When the turn of a stage comes and its median remaining time ends after the
deadline even at batch 1, with no wait and nobody beside it, serving it keeps no deadline: it moves
behind the others, where the shortest goes first, with aging. There it gets what is left over, and
`LATE_SHARE` of the dispatches. At the present pace of the engines the same judgement gives up many
jobs that would have been in time (docs/decisions/0016). Nothing is ever stopped because its
deadline passed: a late answer is still an answer (docs/decisions/0009).

Jobs without a deadline are never late; they go after those with one that can be met and before the
late ones, the shortest first, with aging.
"""

from __future__ import annotations

from maestroctl.domain.ids import JobId
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.ordering.costs import Costs
from maestroctl.scheduler.ordering.edf import NO_DEADLINE_S, among_equals_s, deadline_of
from maestroctl.scheduler.ordering.stjf import total_tokens

PRICE_S = 1000.0
"""w when every recent job was given up. docs/experiments.md says how it was chosen."""
MEMORY_JOBS = 200
"""About so many of the last jobs with a deadline count as recent."""


class Slack(OrderingPolicy):
    """Key = deadline + w x T_rem, in seconds.

    Args:
        policy: `aging_s` is the aging of those without a deadline and of late ones.
    """

    can_lapse = True
    reserves_slots = True

    def __init__(self, policy: PolicySpec) -> None:
        self._rate = policy.aging_s
        self._costs = Costs()
        self._given_up = 0.0  # share of recent jobs, 0 to 1
        self._jobs: dict[JobId, bool] = {}  # live ones with a deadline; True = given up

    def use(self, costs: Costs) -> None:
        """Price stages by these from now on."""
        self._costs = costs

    @property
    def weight(self) -> float:
        """w: seconds of deadline that a second of remaining work counts as by now."""
        return PRICE_S * self._given_up

    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem along the critical path at batch 1: of the predicted total where there is one,
        else by Eqs 7 and 8."""
        if prediction.total_tokens.get(stage.candidates[0]):
            total = total_tokens(stage, prediction)
            return self._costs.total_alone_s(stage, prediction, total)
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
        if job.job_id not in self._jobs:
            self._jobs[job.job_id] = False
            self._given_up *= 1.0 - 1.0 / MEMORY_JOBS
        return deadline_s + self.weight * remaining_s + among_equals_s(stage, job)

    def late_key(self, stage: StageState, now_s: float) -> float | None:
        """Its remaining time and aging, when it most likely cannot be in time any more."""
        descriptor = stage.as_chosen
        deadline_s = deadline_of(descriptor, stage.job)
        if deadline_s is None:
            return None
        remaining_s = self.remaining_s(descriptor, stage.prediction)
        if now_s + remaining_s <= deadline_s:
            return None
        if not self._jobs.get(descriptor.job_id, True):
            self._jobs[descriptor.job_id] = True
            self._given_up = min(1.0, self._given_up + 1.0 / MEMORY_JOBS)
        return 2.0 * NO_DEADLINE_S + remaining_s + self._rate * descriptor.arrival_s

    def on_job_gone(self, job_id: JobId) -> None:
        """Forget it."""
        self._jobs.pop(job_id, None)
