"""The global level: which ready stage goes first.

A policy gives each stage one number when it becomes ready; lower goes first, ties by stage id.
The number must not depend on what happens while the stage waits: heaps hold it. Aging therefore
takes its time-invariant form, a term in the arrival time (algorithms section 3).

A policy may keep state of its own; it learns through the `on_` hooks, which the core calls. It
reads the job and changes nothing of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from maestroctl.domain.ids import JobId
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState


class OrderingPolicy(ABC):
    """Orders ready stages."""

    @abstractmethod
    def key(
        self, stage: StageDescriptor, job: JobState, prediction: Prediction, now_s: float
    ) -> float:
        """Order of the stage, lower first; asked once, when it becomes ready."""

    def on_stage_ended(  # noqa: B027 - a hook, not an abstract method
        self, stage: StageDescriptor, job: JobState, served_s: float, output_tokens: int
    ) -> None:
        """A stage was served for `served_s` seconds; `job` has them in its attained service."""

    def on_tools_ran(self, job: JobState, step: str, seconds: float) -> None:  # noqa: B027
        """Tool calls of the job took `seconds`; `job` has them in its attained service."""

    def on_job_gone(self, job_id: JobId) -> None:  # noqa: B027
        """The job is over or forgotten: drop what is kept of it."""
