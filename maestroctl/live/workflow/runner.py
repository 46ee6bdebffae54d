"""Executes workflows: carries out `PrepareStep`, `RunStep` and `FinishJob` of the core.

Theory of operation. The core walks the graph, the runner does what a step says:

=============  ==============================================  ================================
effect         what is done                                    event
=============  ==============================================  ================================
`PrepareStep`  `for_each` is rendered                          `StepPrepared` or `StepFailed`
`RunStep`      a task: LLM calls and tools (`step_run`)        `StepFinished` or `StepFailed`
`FinishJob`    tasks of the job are cancelled, its data gone   none
=============  ==============================================  ================================

A result is not posted to the core but handed to `record` together with its event, because the host
must make it durable before anything that builds on it starts; the host posts the event after the
commit. The output is remembered here first, so whatever the core asks for next can read it. After
a restart `add_job` gets the results the store has; items of a fan-out are worked out again from
them, since a template gives the same list for the same outputs.

The runner owns the data of jobs and the tasks of their steps. All on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from maestroctl.config.template_syntax import TemplateMistake
from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.errors import ConfigError
from maestroctl.gateway.submit import JobRequest, StageService
from maestroctl.live.workflow.admission import check_request
from maestroctl.live.workflow.job import JobRun
from maestroctl.live.workflow.messages import TokenRatios
from maestroctl.live.workflow.progress import OnProgress, Progress, ProgressKind
from maestroctl.live.workflow.retry import StepError
from maestroctl.live.workflow.step_run import StepRun, StepServices
from maestroctl.live.workflow.tools import ToolRunner, ToolSet
from maestroctl.scheduler.effects import FinishJob, PrepareStep, RunStep
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StepFailed,
    StepFinished,
    StepPrepared,
    StepRef,
    StepResult,
)
from maestroctl.store.rows import StepResultRow

_log = logging.getLogger(__name__)

Record = Callable[[StepResultRow, StepFinished], None]
"""Makes the row durable, then gives the event to the core."""

_ALL_MODELS = "auto"


class WorkflowRunner:
    """Runs the steps of submitted jobs.

    Args:
        stages: runs LLM calls.
        post: gives an event to the core.
        record: makes a result durable and then gives its event to the core.
        resolve: candidate models of a name in a workflow file; empty = unknown.
        now_s: the core's clock.
        new_stage_id: unique over the life of the state database.
        predict: expected output of a stage, only shown as progress.
        on_progress: told what happens; must be quick.
        allow_tools: ``[tools] allow`` of the fleet.
        wall_s: Unix seconds, for the store.
        sleep: waits between tries.
    """

    def __init__(
        self,
        stages: StageService,
        post: Callable[[CoordinatorEvent], None],
        record: Record,
        resolve: Callable[[str], tuple[ModelName, ...]],
        now_s: Callable[[], float],
        new_stage_id: Callable[[], StageId],
        predict: Callable[[StageDescriptor, StageText], Prediction] | None = None,
        *,
        on_progress: OnProgress = lambda _: None,
        allow_tools: tuple[str, ...] = (),
        wall_s: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._post = post
        self._record = record
        self._resolve = resolve
        self._now_s = now_s
        self._wall_s = wall_s
        self._on_progress = on_progress
        self._allow_tools = allow_tools
        self._tool_runner = ToolRunner()
        self._services = StepServices(
            stages=stages,
            post=post,
            now_s=now_s,
            new_stage_id=new_stage_id,
            predict=predict,
            on_progress=on_progress,
            sleep=sleep,
            tool_runner=self._tool_runner,
            ratios=TokenRatios(),
        )
        self._jobs: dict[JobId, JobRun] = {}
        self._tasks: dict[JobId, dict[StepRef, asyncio.Task[None]]] = {}

    # --- jobs -----------------------------------------------------------------------------------

    def add_job(
        self,
        job_id: JobId,
        request: JobRequest,
        finished: Iterable[StepResultRow] = (),
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Take a job in; call it before the core hears of the job.

        Args:
            job_id: of the run.
            request: from anybody; it is checked here as a file would be.
            finished: results the store has from before a restart.
            deadline_s: absolute, in the core's clock; None = none.

        Raises:
            ConfigError: the workflow is wrong, an input or variable is missing or unknown, a tool
                is not allowed or cannot be found, or a model is unknown.
        """
        check_request(request)
        tools = ToolSet(request.workflow.tools.values(), self._allow_tools)
        job = JobRun(job_id, request, deadline_s, finished, tools)
        for step in request.workflow.steps.values():
            job.candidates[step.name] = self._candidates(step.models or (_ALL_MODELS,), step.name)
        self._jobs[job_id] = job
        self._tasks[job_id] = {}

    def output(self, job_id: JobId) -> str | None:
        """The output of a job as far as it has run; None when the job is unknown."""
        job = self._jobs.get(job_id)
        return job.output() if job is not None else None

    def _candidates(self, names: Iterable[str], step: str) -> tuple[ModelName, ...]:
        models: dict[ModelName, None] = {}
        for name in names:
            found = self._resolve(name)
            if not found:
                raise ConfigError(f"unknown model {name!r}", key=f"step.{step}.models")
            models.update(dict.fromkeys(found))
        return tuple(models)

    # --- effects --------------------------------------------------------------------------------

    def carry_out(self, effect: PrepareStep | RunStep | FinishJob) -> None:
        """Carry out any of the three effects."""
        match effect:
            case PrepareStep():
                self.prepare(effect)
            case RunStep():
                self.run(effect)
            case FinishJob():
                self.finish(effect)

    def prepare(self, effect: PrepareStep) -> None:
        """Decide how often the step runs; answers `StepPrepared` or `StepFailed`."""
        job = self._jobs.get(effect.job_id)
        if job is None:
            return
        try:
            num_items = len(job.items(effect.step, effect.visit))
        except TemplateMistake as exc:
            reason = f"step {effect.step!r}: for_each: {exc}"
            self._fail(effect.job_id, StepRef(effect.step, effect.visit), Outcome.INVALID, reason)
            return
        # An error of ours must fail this job, not the coordinator.
        except Exception as exc:
            _log.exception("step %r of job %s", effect.step, effect.job_id)
            reason = f"step {effect.step!r}: internal error: {type(exc).__name__}: {exc}"
            self._fail(effect.job_id, StepRef(effect.step, effect.visit), Outcome.FAILED, reason)
            return
        self._post(StepPrepared(effect.job_id, effect.step, effect.visit, num_items))

    def run(self, effect: RunStep) -> None:
        """Start one run of a step; answers `StepFinished` (through `record`) or `StepFailed`."""
        job = self._jobs.get(effect.job_id)
        if job is None:
            return
        task = asyncio.create_task(
            self._run(job, effect.ref), name=f"step {effect.job_id}/{effect.ref.step}"
        )
        tasks = self._tasks[effect.job_id]
        tasks[effect.ref] = task
        task.add_done_callback(lambda _: tasks.pop(effect.ref, None))

    def finish(self, effect: FinishJob) -> str | None:
        """The job is over: what still runs is cancelled, its data forgotten.

        Returns:
            Its output; None when it was unknown.
        """
        job = self._jobs.pop(effect.job_id, None)
        for task in list(self._tasks.pop(effect.job_id, {}).values()):
            task.cancel()
        return job.output() if job is not None else None

    async def aclose(self) -> None:
        """Cancel every task and wait for them; nothing more is posted."""
        tasks = [task for tasks in self._tasks.values() for task in tasks.values()]
        self._jobs.clear()
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tool_runner.aclose()

    # --- one run of a step ----------------------------------------------------------------------

    async def _run(self, job: JobRun, ref: StepRef) -> None:
        """Top of a host task: whatever happens becomes an event."""
        started_s = self._now_s()
        self._tell(ProgressKind.STEP_STARTED, job.job_id, ref)
        try:
            output = await StepRun(self._services, job, ref).execute()
            self._finish_run(job, ref, output, started_s)
        except StepError as exc:
            self._fail(job.job_id, ref, exc.outcome, f"step {ref.step!r}: {exc.reason}")
        except TemplateMistake as exc:
            self._fail(job.job_id, ref, Outcome.INVALID, f"step {ref.step!r}: template: {exc}")
        except Exception as exc:
            _log.exception("step %r of job %s", ref.step, job.job_id)
            reason = f"step {ref.step!r}: internal error: {type(exc).__name__}: {exc}"
            self._fail(job.job_id, ref, Outcome.FAILED, reason)

    def _finish_run(self, job: JobRun, ref: StepRef, output: str, started_s: float) -> None:
        repeat, problem = job.wants_repeat(ref, output)
        num_items = len(job.items(ref.step, ref.visit))
        job.remember(ref, output, num_items)
        row = StepResultRow(
            job_id=job.job_id,
            step=ref.step,
            visit=ref.visit,
            item=ref.item,
            num_items=num_items,
            output=output,
            finished_at=self._wall_s(),
            repeat=repeat,
        )
        self._tell(
            ProgressKind.STEP_FINISHED,
            job.job_id,
            ref,
            text=f"until could not be evaluated: {problem}" if problem else "",
            seconds=self._now_s() - started_s,
        )
        self._record(row, StepFinished(job.job_id, StepResult(ref, num_items, repeat)))

    def _fail(self, job_id: JobId, ref: StepRef, outcome: Outcome, reason: str) -> None:
        if job_id not in self._jobs:
            return
        self._tell(ProgressKind.STEP_FAILED, job_id, ref, text=reason)
        self._post(StepFailed(job_id, ref, outcome, reason))

    def _tell(self, kind: ProgressKind, job_id: JobId, ref: StepRef, **fields: Any) -> None:
        self._on_progress(Progress(kind, job_id, ref, **fields))
