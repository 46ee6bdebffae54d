"""Which jobs are alive, and for how long a job that nobody declared is remembered.

A submitted workflow lives until it is finished. A job that is known only by its stages (a plain
request, or an agent framework that sends many requests under one job id) has no end of its own: it
is forgotten when it has had no stage for `FORGET_AFTER_S`, or earlier when too many such jobs are
idle. Forgetting costs it nothing but its attained service and its position counters. Nothing here
needs a timer: idle jobs are in order of time, and each new one pushes the old ones out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from maestroctl.domain.ids import JobId
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.events import JobSubmitted

FORGET_AFTER_S = 1800.0
"""The gateway joins requests to a job for 30 minutes (system section 5)."""
MAX_IDLE_JOBS = 4096
"""Idle undeclared jobs kept; about 1 KB each."""
MAX_FINISHED = 4096
"""Ids of finished workflow runs kept, so that a late stage of one is not taken for a new job."""


class JobTable:
    """Live jobs by id.

    Args:
        on_gone: told of every job that is finished or forgotten, once.
    """

    __slots__ = ("_finished", "_idle", "_jobs", "_on_gone")

    def __init__(self, on_gone: Callable[[JobId], None]) -> None:
        self._on_gone = on_gone
        self._jobs: dict[JobId, JobState] = {}
        # Undeclared, without stages; workflow runs that are over: oldest first. A plain dict that
        # loses its oldest keys is slow to find the next one, an OrderedDict is not.
        self._idle: OrderedDict[JobId, JobState] = OrderedDict()
        self._finished: OrderedDict[JobId, None] = OrderedDict()

    def __iter__(self) -> Iterator[JobState]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: JobId) -> JobState | None:
        """The job, or None when it is unknown, forgotten or finished."""
        return self._jobs.get(job_id)

    def idle(self) -> tuple[JobId, ...]:
        """Undeclared jobs that have no stage now, longest idle first."""
        return tuple(self._idle)

    def is_finished(self, job_id: JobId) -> bool:
        """A workflow run of this id ended not long ago, and nothing has used the id since."""
        return job_id in self._finished

    def submit(self, event: JobSubmitted) -> JobState:
        """A workflow run begins; it takes over what is known of stages under the same id."""
        job = self._jobs.get(event.job_id)
        if job is None:
            job = JobState(
                event.job_id,
                event.workflow.name,
                event.service_class,
                event.arrival_s,
                event.deadline_s,
            )
            self._jobs[event.job_id] = job
        else:
            job.workflow, job.service_class = event.workflow.name, event.service_class
            job.arrival_s, job.deadline_s = event.arrival_s, event.deadline_s
            job.is_over = False
        self._idle.pop(event.job_id, None)
        self._finished.pop(event.job_id, None)
        return job

    def of_stage(self, stage: StageDescriptor, now_s: float) -> JobState:
        """The job a stage belongs to, made when it is not known."""
        job = self._jobs.get(stage.job_id)
        if job is None:
            job = JobState(
                stage.job_id, stage.workflow, stage.service_class, stage.arrival_s, stage.deadline_s
            )
            self._jobs[stage.job_id] = job
            self._finished.pop(stage.job_id, None)
            self._forget_old(now_s)
        elif self._idle:
            self._idle.pop(stage.job_id, None)
        return job

    def left(self, job: JobState, now_s: float) -> None:
        """A stage of the job ended."""
        if job.stages or job.progress is not None:
            return
        if job.is_over:
            self._drop_finished(job)
            return
        job.idle_since_s = now_s
        self._idle[job.job_id] = job
        if len(self._idle) > MAX_IDLE_JOBS:
            self._forget_old(now_s)

    def finish(self, job: JobState) -> None:
        """The workflow run is over. Stages that outside callers hold in its name go on."""
        job.progress = None
        job.is_over = True
        if not job.stages:
            self._drop_finished(job)

    def _drop_finished(self, job: JobState) -> None:
        del self._jobs[job.job_id]
        self._finished[job.job_id] = None
        if len(self._finished) > MAX_FINISHED:
            self._finished.popitem(last=False)
        self._on_gone(job.job_id)

    def _forget_old(self, now_s: float) -> None:
        while self._idle:
            job = next(iter(self._idle.values()))
            if len(self._idle) <= MAX_IDLE_JOBS and now_s - job.idle_since_s < FORGET_AFTER_S:
                break
            del self._idle[job.job_id]
            del self._jobs[job.job_id]
            self._on_gone(job.job_id)
