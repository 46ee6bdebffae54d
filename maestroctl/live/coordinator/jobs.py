"""Workflow runs: taken in durably, resumed after a restart, cancelled, finished.

A job is in the store before `submit` returns. A step's result and the event that makes its
successors ready go together: the event reaches the core once the result is durable, so a crash at
any moment resumes at the last finished step, and the core, told what was finished, asks for
exactly the rest.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from maestroctl.domain.ids import JobId, StageId
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import ConfigError, InvalidRequest, MaestroError, Unavailable
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.coordinator.host import CoordinatorHost, JobEffect
from maestroctl.live.workflow.progress import Progress
from maestroctl.live.workflow.runner import WorkflowRunner
from maestroctl.scheduler.effects import FinishJob
from maestroctl.scheduler.events import (
    JobCancelled,
    JobSubmitted,
    StepFinished,
    StepRef,
    StepResult,
)
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.rows import JobRow, StepResultRow


class JobDesk:
    """Jobs of one coordinator.

    Args:
        notify: told what a person should know.
    """

    def __init__(
        self, host: CoordinatorHost, store: Store, journal: Journal, notify: Callable[[str], None]
    ) -> None:
        self._host = host
        self._store = store
        self._journal = journal
        self._notify = notify
        self._rows: dict[JobId, JobRow] = {}
        self._closing = False
        self._runner = WorkflowRunner(
            stages=host,
            post=self._post,
            record=self._record,
            resolve=host.fleet.resolve,
            now_s=host.now_s,
            new_stage_id=lambda: StageId(f"st-{secrets.token_hex(8)}"),
            on_progress=self._tell,
            allow_tools=host.fleet.tools.allow,
        )
        host.carry_out_job = self._carry_out

    # --- taking in ------------------------------------------------------------------------------

    async def submit(self, request: JobRequest) -> JobId:
        """Take a job in; durable once this returns.

        Raises:
            InvalidRequest: an unknown model, or a tool that is not allowed here.
            Unavailable: the coordinator is stopping.
        """
        if self._closing:
            raise Unavailable("the coordinator is stopping", retry_after_s=5.0)
        workflow = request.workflow
        row = JobRow(
            job_id=f"job-{secrets.token_hex(6)}",
            submitted_at=time.time(),
            workflow=workflow.name,
            workflow_json=msgspec.json.encode(workflow).decode(),
            input_json=json.dumps(request.input),
            variables_json=json.dumps(dict(request.variables)),
            service_class=request.service_class or workflow.service_class,
            deadline_s=request.deadline_s or workflow.deadline_s,
        )
        try:
            self._add(row, request, [])
        except ConfigError as exc:
            raise InvalidRequest(str(exc), hint=exc.hint) from exc
        await self._journal.commit([row], retry=False)
        self._begin(row, workflow, [])
        return JobId(row.job_id)

    async def resume(self) -> int:
        """Go on with what an earlier coordinator left; how many jobs."""
        rows = await asyncio.to_thread(self._store.unfinished_jobs)
        for row in rows:
            try:
                await self._resume_one(row)
            except (MaestroError, msgspec.MsgspecError, ValueError) as exc:
                self._finish(row, JobStatus.FAILED, f"could not be resumed: {exc}", None)
        if rows:
            self._notify(f"Resumed {len(rows)} unfinished job{'s' if len(rows) > 1 else ''}.")
        return len(rows)

    async def _resume_one(self, row: JobRow) -> None:
        workflow = msgspec.json.decode(row.workflow_json, type=WorkflowSpec)
        finished = await asyncio.to_thread(self._store.step_results, row.job_id)
        request = JobRequest(
            workflow,
            input=json.loads(row.input_json),
            variables=json.loads(row.variables_json),
            service_class=row.service_class,
            deadline_s=row.deadline_s,
        )
        self._add(row, request, finished)
        self._begin(row, workflow, finished)

    def _add(self, row: JobRow, request: JobRequest, finished: list[StepResultRow]) -> None:
        job_id = JobId(row.job_id)
        self._runner.add_job(job_id, request, finished, deadline_s=self._deadline(row))
        self._rows[job_id] = row

    def _begin(self, row: JobRow, workflow: WorkflowSpec, finished: list[StepResultRow]) -> None:
        self._host.post(
            JobSubmitted(
                JobId(row.job_id),
                workflow,
                row.service_class,
                arrival_s=row.submitted_at - self._host.wall_offset_s,
                deadline_s=self._deadline(row),
                finished=tuple(
                    StepResult(StepRef(r.step, r.visit, r.item), r.num_items, r.repeat)
                    for r in finished
                ),
            )
        )
        self._host.bus.publish("job_started", row.job_id, workflow=row.workflow)

    def _deadline(self, row: JobRow) -> float | None:
        """In the core's time."""
        if row.deadline_s is None:
            return None
        return row.submitted_at + row.deadline_s - self._host.wall_offset_s

    # --- running --------------------------------------------------------------------------------

    def _carry_out(self, effect: JobEffect) -> None:
        if self._closing:
            return
        if not isinstance(effect, FinishJob):
            self._runner.carry_out(effect)
            return
        output = self._runner.finish(effect)
        row = self._rows.pop(effect.job_id, None)
        if row is not None:
            self._finish(row, effect.status, effect.reason, output)

    def _finish(self, row: JobRow, status: JobStatus, reason: str, output: str | None) -> None:
        done = replace(
            row,
            status=status,
            reason=reason,
            output=output if status is JobStatus.FINISHED else None,
            finished_at=time.time(),
        )
        self._journal.commit_then(
            [done],
            lambda: self._host.bus.publish(
                "job_finished", row.job_id, status=status.value, reason=reason
            ),
        )

    def _record(self, row: StepResultRow, event: StepFinished) -> None:
        """The result first, then what builds on it."""
        self._journal.commit_then([row], lambda: self._post(event))

    def _post(self, event: object) -> None:
        if not self._closing:
            self._host.post(event)  # type: ignore[arg-type]

    def _tell(self, progress: Progress) -> None:
        if self._host.bus.has_watchers:
            event = progress.as_event()
            self._host.bus.publish(event.pop("type"), event.pop("job_id"), **event)

    def cancel(self, job_id: JobId) -> bool:
        """False when it is unknown or over."""
        if job_id not in self._rows:
            return False
        self._host.post(JobCancelled(job_id, "cancelled on request"))
        return True

    # --- the end --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Start nothing more; jobs stay unfinished and resume at the next start."""
        self._closing = True

    async def close(self) -> None:
        """Cancel the tasks of all steps."""
        self._closing = True
        await self._runner.aclose()
