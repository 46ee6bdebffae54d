"""The global level: which ready stage goes first.

A policy gives each stage one number when it becomes ready; lower goes first, ties by stage id.
The number must not depend on what happens while the stage waits: heaps hold it. Aging therefore
takes its time-invariant form, a term in the arrival time (algorithms section 3).

A policy may keep state of its own; it learns through the `on_` hooks, which the core calls. It
reads the job and changes nothing of it. What stages cost and what follows them it asks of the
`Costs` that the core hands it before anything else.

Waiting bound. Whatever the keys, a stage that has waited for longer than `PolicySpec.max_wait_s` is
overtaken only by stages that became ready before it (`bounds_wait`). That holds among stages that
can go to the same places: it opens no slot that is kept for others.

Late stages. A policy by deadlines may have a stage *lapse*, once: when its turn comes and the
deadline can no longer be met, it moves to rank 2, behind the others, with a new key. Late stages
get what is left over, and `LATE_SHARE` of the dispatches in any case. The waiting bound holds among
late stages and among the others; between the two the share takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from maestroctl.domain.ids import JobId
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.costs import Costs

LATE_SHARE = 0.05
"""Part of the dispatches that late stages get while others wait (algorithms section 3)."""


class OrderingPolicy(ABC):
    """Orders ready stages.

    Attributes:
        can_lapse: `late_key` may answer with something else than None.
        bounds_wait: after `max_wait_s` a stage is overtaken only by older ones.
        reserves_slots: some slots are kept for interactive stages (`interactive_reserve`).
    """

    can_lapse: bool = False
    bounds_wait: bool = True
    reserves_slots: bool = False

    @abstractmethod
    def key(
        self, stage: StageDescriptor, job: JobState, prediction: Prediction, now_s: float
    ) -> float:
        """Order of the stage, lower first; asked once, when it becomes ready."""

    def use(self, costs: Costs) -> None:  # noqa: B027 - a hook, not an abstract method
        """Called once by the core, before anything else, with what it knows of costs."""

    def late_key(self, stage: StageState, now_s: float) -> float | None:  # noqa: ARG002
        """Key of the stage among the late ones, when it is one of them by now; else None.

        Asked of the stage that would go next, and only where `can_lapse`.
        """
        return None

    def on_stage_ended(  # noqa: B027 - a hook, not an abstract method
        self, stage: StageDescriptor, job: JobState, served_s: float, output_tokens: int
    ) -> None:
        """A stage was served for `served_s` seconds; `job` has them in its attained service."""

    def on_tools_ran(self, job: JobState, step: str, seconds: float) -> None:  # noqa: B027
        """Tool calls of the job took `seconds`; `job` has them in its attained service."""

    def on_job_gone(self, job_id: JobId) -> None:  # noqa: B027
        """The job is over or forgotten: drop what is kept of it."""
