"""Earliest deadline first, of the job.

A deadline is its own aging: a stage with one is overtaken only by earlier deadlines. Jobs without
a deadline go after all others, in order of arrival; under overload they wait, which is what this
baseline means.
"""

from __future__ import annotations

from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.base import OrderingPolicy

NO_DEADLINE_S = 1e10
"""Later than any deadline (in 1970 seconds, the year 2286), and exact to microseconds."""
_TIE = 1e-6
"""Among equal deadlines the earlier stage: a thousand seconds of it weigh a millisecond."""


def deadline_of(stage: StageDescriptor, job: JobState) -> float | None:
    """The job's, or what the stage brought with it."""
    return job.deadline_s if job.deadline_s is not None else stage.deadline_s


def among_equals_s(stage: StageDescriptor, job: JobState) -> float:
    """A small term that puts the earlier of two equal stages first."""
    return _TIE * (stage.arrival_s - job.arrival_s)


class Edf(OrderingPolicy):
    """Key = the job's deadline, in the core's time."""

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,
        prediction: Prediction,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Seconds of the core's time."""
        deadline_s = deadline_of(stage, job)
        if deadline_s is None:
            return NO_DEADLINE_S + stage.arrival_s
        return deadline_s + among_equals_s(stage, job)
