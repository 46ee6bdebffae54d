"""First come, first served."""

from __future__ import annotations

from maestroctl.domain.ids import JobId
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.fcfs import Fcfs
from maestroctl.testing.coordinator_builders import PREDICTION, make_stage


def test_the_key_is_the_arrival_of_the_stage_and_not_of_its_job() -> None:
    job = JobState(JobId("old"), "", ServiceClass.BATCH, 1.0, None)
    assert Fcfs().key(make_stage(arrival_s=7.0), job, PREDICTION, 9.0) == 7.0
