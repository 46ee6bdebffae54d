"""Plays the jobs: submits them in time, runs their steps call by call, ends them.

The counterpart of `live.workflow`: a step is rendered at once (its width is in the plan), a run of
it makes its calls one after the other with their tools between, and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from maestroctl.domain.ids import JobId, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.scheduler.effects import FinishJob, PrepareStep
from maestroctl.scheduler.events import (
    JobSubmitted,
    StepFailed,
    StepFinished,
    StepPrepared,
    StepRef,
    StepResult,
    ToolsRan,
)
from maestroctl.sim.jobs import Call, JobPlan, JobRow, Run, StageRow
from maestroctl.sim.loop import EventLoop
from maestroctl.sim.prediction import Predictor, Remaining

if TYPE_CHECKING:
    from maestroctl.sim.coordinator_host import SimCoordinator


class _Job:
    """A job that is under way."""

    __slots__ = ("plan", "remaining", "row")

    def __init__(self, plan: JobPlan, row: JobRow, remaining: dict[Run, list[Remaining]]) -> None:
        self.plan = plan
        self.row = row
        self.remaining = remaining


class OpenStage:
    """A stage that is under way: call `index` of a run."""

    __slots__ = ("call", "index", "job", "row", "run")

    def __init__(self, job: _Job, run: Run, index: int, call: Call, row: StageRow) -> None:
        self.job = job
        self.run = run
        self.index = index
        self.call = call
        self.row = row


class SimRunner:
    """Owner of the jobs.

    Attributes:
        ended: rows of jobs, in order of their end.
        num_open: jobs submitted or still to come that are not over.
    """

    def __init__(self, loop: EventLoop, coordinator: SimCoordinator, predictor: Predictor) -> None:
        self.ended: list[JobRow] = []
        self.num_open = 0
        self._loop = loop
        self._coordinator = coordinator
        self._predictor = predictor
        self._jobs: dict[JobId, _Job] = {}

    # --- jobs -----------------------------------------------------------------------------------

    def schedule(self, plans: Sequence[JobPlan]) -> None:
        """Have these jobs, in order of their arrival, submitted at their time."""
        self.num_open += len(plans)
        self._schedule_next(plans, 0)

    def _schedule_next(self, plans: Sequence[JobPlan], index: int) -> None:
        """One arrival at a time is on the heap."""
        if index < len(plans):
            self._loop.at(plans[index].arrival_s, self._submit, plans, index)

    def _submit(self, plans: Sequence[JobPlan], index: int) -> None:
        self._schedule_next(plans, index + 1)
        plan = plans[index]
        now_s = self._loop.now_s
        row = JobRow(plan.job_id, now_s, plan.workflow.name, plan.service_class, plan.deadline_s)
        self._jobs[plan.job_id] = _Job(plan, row, self._predictor.remaining(plan))
        deadline_s = None if plan.deadline_s is None else now_s + plan.deadline_s
        self._coordinator.post(
            JobSubmitted(plan.job_id, plan.workflow, plan.service_class, now_s, deadline_s)
        )

    def finish(self, effect: FinishJob) -> None:
        """The job is over; the loop stops with the last one."""
        row = self._jobs.pop(effect.job_id).row
        row.status, row.reason, row.finished_at = effect.status, effect.reason, self._loop.now_s
        self.ended.append(row)
        self.num_open -= 1
        if not self.num_open:
            self._loop.stop()

    # --- steps ----------------------------------------------------------------------------------

    def prepare(self, effect: PrepareStep) -> None:
        """Say how many runs the step has."""
        width = self._width(self._jobs[effect.job_id].plan, effect.step, effect.visit)
        self._coordinator.post(StepPrepared(effect.job_id, effect.step, effect.visit, width))

    def run(self, job_id: JobId, ref: StepRef) -> None:
        """Begin a run of a step."""
        self._call(self._jobs[job_id], (ref.step, ref.visit, ref.item), 0)

    def stage_ended(self, stage: OpenStage, outcome: Outcome, reason: str) -> None:
        """A call of a run has come back: its tools follow, then the next call."""
        if outcome is not Outcome.FINISHED:
            job_id = stage.job.plan.job_id
            if job_id in self._jobs:
                ref = StepRef(*stage.run)
                self._coordinator.post(StepFailed(job_id, ref, outcome, reason))
        elif stage.call.tool_s > 0:
            self._loop.after(stage.call.tool_s, self._tools_done, stage)
        else:
            self._call(stage.job, stage.run, stage.index + 1)

    def _tools_done(self, stage: OpenStage) -> None:
        job_id = stage.job.plan.job_id
        if job_id in self._jobs:
            self._coordinator.post(ToolsRan(job_id, stage.run[0], stage.call.tool_s))
            self._call(stage.job, stage.run, stage.index + 1)

    def _call(self, job: _Job, run: Run, index: int) -> None:
        """Make call `index` of a run, or end the run when there is none."""
        plan = job.plan
        if plan.job_id not in self._jobs:
            return
        calls = plan.calls[run]
        if index >= len(calls):
            self._end_run(plan, run)
            return
        call = calls[index]
        descriptor = self._describe(job, run[0], index, call)
        row = StageRow(
            descriptor.stage_id,
            plan.job_id,
            0,
            descriptor.arrival_s,
            run[0],
            call.role,
            plan.service_class,
            prompt_tokens=call.prompt_tokens,
        )
        job.row.num_stages += 1
        prediction = self._predictor.predict(
            call, job.remaining[run][index], plan.confidence, plan.workflow.name
        )
        self._coordinator.open(OpenStage(job, run, index, call, row), descriptor, prediction)

    def _describe(self, job: _Job, step: str, index: int, call: Call) -> StageDescriptor:
        plan = job.plan
        position, invocation = self._coordinator.core.next_position(plan.job_id, call.role)
        return StageDescriptor(
            stage_id=StageId(f"{plan.job_id}/{job.row.num_stages}"),
            job_id=plan.job_id,
            candidates=call.models,
            arrival_s=self._loop.now_s,
            prompt_tokens=PromptTokens(0, call.prompt_tokens, call.prompt_tokens),
            workflow=plan.workflow.name,
            step=step,
            role=call.role,
            service_class=plan.service_class,
            deadline_s=None if plan.deadline_s is None else job.row.submitted_at + plan.deadline_s,
            position=position,
            depth=index,
            invocation_index=invocation,
            tools_available=call.tools_available,
            external=False,
        )

    def _end_run(self, plan: JobPlan, run: Run) -> None:
        step, visit, item = run
        width = self._width(plan, step, visit)
        result = StepResult(StepRef(step, visit, item), width, run in plan.goes_back)
        self._coordinator.post(StepFinished(plan.job_id, result))

    @staticmethod
    def _width(plan: JobPlan, step: str, visit: int) -> int:
        return plan.widths.get((step, visit), 1)
