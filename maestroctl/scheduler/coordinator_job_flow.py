"""The life of a workflow run in `CoordinatorCore`, from `JobSubmitted` to its one `FinishJob`.

A step that is ready is prepared, each of its items run, and what follows becomes ready when they
have ended (`workflow_progress`). When the run is over, whichever way, its stages end first, then
it, then the slots that this freed are handed on. Stages that outside callers hold in its name
outlive a run that ended well.

See also: `coordinator_jobs` (which jobs are alive), `coordinator_stages` (life of a stage).
"""

from __future__ import annotations

from maestroctl.domain.ids import JobId
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.errors import ConfigError
from maestroctl.scheduler.coordinator_dispatch import Dispatcher
from maestroctl.scheduler.coordinator_stages import StageFlow
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.coordinator_tables import CoordinatorTables
from maestroctl.scheduler.coordinator_timers import Out
from maestroctl.scheduler.effects import FinishJob
from maestroctl.scheduler.events import (
    JobCancelled,
    JobSubmitted,
    StepFailed,
    StepFinished,
    StepPrepared,
    ToolsRan,
)
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.workflow_progress import ResumeConflict, StepEffect, WorkflowProgress


class JobFlow:
    """Every transition of a workflow run."""

    def __init__(
        self,
        tables: CoordinatorTables,
        stages: StageFlow,
        dispatcher: Dispatcher,
        ordering: OrderingPolicy,
    ) -> None:
        self._tables = tables
        self._stages = stages
        self._dispatcher = dispatcher
        self._ordering = ordering

    def submitted(self, event: JobSubmitted, now_s: float, out: Out) -> None:
        """A workflow run begins, or resumes; what is known already is stale."""
        tables = self._tables
        known = tables.jobs.get(event.job_id)
        if tables.jobs.is_finished(event.job_id) or (
            known is not None and (known.progress is not None or known.is_over)
        ):
            tables.counters.stale += 1
            return
        if tables.closing:
            return  # it is in the store, and resumes at the next start
        try:
            progress = WorkflowProgress(event.job_id, event.workflow, event.finished)
        except ConfigError as error:
            tables.jobs.finish(tables.jobs.submit(event))
            out.append(FinishJob(event.job_id, JobStatus.FAILED, str(error)))
            return
        job = tables.jobs.submit(event)
        job.progress = progress
        tables.log.append((now_s, event.job_id, "submitted", event.workflow.name))
        self._go_on(job, progress, progress.begin(), now_s, out)

    def step_prepared(self, event: StepPrepared, now_s: float, out: Out) -> None:
        """A step was rendered: run its items."""
        running = self._running(event.job_id)
        if running is None:
            return
        job, progress = running
        try:
            steps = progress.prepared(event.step, event.visit, event.num_items)
        except ResumeConflict as conflict:
            self._finish(job, JobStatus.FAILED, str(conflict), now_s, out)
            return
        self._go_on(job, progress, steps, now_s, out)

    def step_finished(self, event: StepFinished, now_s: float, out: Out) -> None:
        """One run of a step ended well: what follows it may be ready."""
        running = self._running(event.job_id)
        if running is not None:
            job, progress = running
            self._go_on(job, progress, progress.finished(event.result), now_s, out)

    def step_failed(self, event: StepFailed, now_s: float, out: Out) -> None:
        """One run of a step cannot end well: neither can its job."""
        running = self._running(event.job_id)
        if running is None:
            return
        job, progress = running
        if not progress.check_running(event.ref):
            self._tables.counters.stale += 1
        elif not (self._tables.closing and event.outcome is Outcome.INTERRUPTED):
            reason = f"step {event.ref.step}: {event.reason or event.outcome.value}"
            self._finish(job, JobStatus.FAILED, reason, now_s, out)

    def tools_ran(self, event: ToolsRan, now_s: float, out: Out) -> None:  # noqa: ARG002
        """Tools of the job ran: attained service, as execution is."""
        job = self._tables.jobs.get(event.job_id)
        if job is None:
            self._tables.counters.stale += 1
            return
        job.attained_s += event.seconds
        self._tables.profile.tools_ran(event.job_id, event.step, event.seconds)
        self._ordering.on_tools_ran(job, event.step, event.seconds)

    def cancelled(self, event: JobCancelled, now_s: float, out: Out) -> None:
        """Somebody cancelled the job: its stages end with it."""
        job = self._tables.jobs.get(event.job_id)
        if job is None:
            self._tables.counters.stale += 1
        elif job.progress is not None:
            self._finish(job, JobStatus.CANCELLED, event.reason, now_s, out)
        else:  # a job known by its stages alone has nothing else to end
            self._drop_stages(job, event.reason, now_s, out)

    def _running(self, job_id: JobId) -> tuple[JobState, WorkflowProgress] | None:
        """The running workflow; None = it is over, and the event stale."""
        job = self._tables.jobs.get(job_id)
        if job is None or job.progress is None:
            self._tables.counters.stale += 1
            return None
        return job, job.progress

    def _go_on(
        self,
        job: JobState,
        progress: WorkflowProgress,
        steps: list[StepEffect] | None,
        now_s: float,
        out: Out,
    ) -> None:
        """Ask for what became ready; None = the event was stale."""
        if steps is None:
            self._tables.counters.stale += 1
            return
        if not self._tables.closing:
            out.extend(steps)
        if progress.is_finished:
            self._finish(job, JobStatus.FINISHED, "", now_s, out)

    def _finish(
        self, job: JobState, status: JobStatus, reason: str, now_s: float, out: Out
    ) -> None:
        """The workflow is over: end the stages it still has, then say so, once."""
        self._tables.log.append((now_s, job.job_id, status.value, reason))
        if status is not JobStatus.FINISHED:
            self._tables.profile.job_broken(job.job_id)
        self._drop_stages(
            job,
            reason or "its job is over",
            now_s,
            out,
            FinishJob(job.job_id, status, reason),
            keep_external=status is JobStatus.FINISHED,
        )

    def _drop_stages(
        self,
        job: JobState,
        reason: str,
        now_s: float,
        out: Out,
        finish: FinishJob | None = None,
        keep_external: bool = False,
    ) -> None:
        """End the job's stages, then the job itself, then hand its slots on."""
        freed = []
        for stage in list(job.stages.values()):
            if keep_external and stage.stage.external:
                continue
            place = self._stages.withdraw(stage, Outcome.CANCELLED, reason, now_s, out)
            if place is not None:
                freed.append(place.model)
        if finish is not None:
            self._tables.jobs.finish(job)
            out.append(finish)
        self._dispatcher.pump_models(freed, now_s, out)
