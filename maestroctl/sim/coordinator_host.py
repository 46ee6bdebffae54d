"""The simulated coordinator: owns a `CoordinatorCore`, plays jobs, keeps rows and records.

The counterpart of `live.coordinator` and `live.workflow`: a step is rendered at once (its width is
in the plan), a run of it makes its calls one after the other with their tools between, and ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, assert_never

from maestroctl.domain.ids import JobId, NodeName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.prediction import PRIOR
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.effects import (
    AdvisePrewarm,
    CancelTimer,
    CoordinatorEffect,
    DispatchStage,
    FinishJob,
    PrepareStep,
    RebookStage,
    RecordDecision,
    ResolveStage,
    RunStep,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    JobSubmitted,
    PredictionArrived,
    PrewarmAdvised,
    StageArrived,
    StageEnded,
    StageOffered,
    StageRebooked,
    StageStarted,
    StepFailed,
    StepFinished,
    StepPrepared,
    StepRef,
    StepResult,
    TimerFired,
    ToolsRan,
)
from maestroctl.sim.jobs import Call, JobPlan, JobRow, Run, StageRow
from maestroctl.sim.loop import EventLoop, Timers
from maestroctl.sim.prediction import Predictor, Remaining
from maestroctl.telemetry.recorder import EventLog

if TYPE_CHECKING:
    from maestroctl.sim.node_host import SimNode


class _Job:
    """A job that is under way."""

    __slots__ = ("plan", "remaining", "row")

    def __init__(self, plan: JobPlan, row: JobRow, remaining: dict[Run, list[Remaining]]) -> None:
        self.plan = plan
        self.row = row
        self.remaining = remaining


class _Stage:
    """A stage that is under way: call `index` of a run."""

    __slots__ = ("call", "index", "job", "row", "run")

    def __init__(self, job: _Job, run: Run, index: int, call: Call, row: StageRow) -> None:
        self.job = job
        self.run = run
        self.index = index
        self.call = call
        self.row = row


class SimCoordinator:
    """Runs one `CoordinatorCore` on the event loop.

    Attributes:
        stages, jobs: rows of everything that ended, in order of their end.
        num_open: jobs submitted or still to come that are not over.
    """

    def __init__(
        self,
        loop: EventLoop,
        core: CoordinatorCore,
        nodes: dict[NodeName, SimNode],
        predictor: Predictor,
        record: Callable[[DecisionRecord], None] | None = None,
        listen: Callable[[CoordinatorEvent, float], None] | None = None,
        log: EventLog | None = None,
        prediction_s: float | None = None,
    ) -> None:
        self.core = core
        self.stages: list[StageRow] = []
        self.jobs: list[JobRow] = []
        self.num_open = 0
        self._loop = loop
        self._nodes = nodes
        self._predictor = predictor
        self._record = record
        self._listen = listen
        self._log = log
        self._prediction_s = prediction_s
        self._jobs: dict[JobId, _Job] = {}
        self._stages: dict[StageId, _Stage] = {}
        self._timers = Timers(loop, lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[CoordinatorEvent] = deque()
        self._handling = False

    # --- jobs in --------------------------------------------------------------------------------

    def schedule(self, plans: Sequence[JobPlan]) -> None:
        """Have these jobs, in order of their arrival, submitted at their time."""
        self.num_open += len(plans)
        self._schedule_next(plans, 0)

    def _schedule_next(self, plans: Sequence[JobPlan], index: int) -> None:
        """One arrival at a time is on the heap."""
        if index < len(plans):
            self._loop.at(plans[index].arrival_s, self._arrive, plans, index)

    def _arrive(self, plans: Sequence[JobPlan], index: int) -> None:
        self._schedule_next(plans, index + 1)
        plan = plans[index]
        now_s = self._loop.now_s
        row = JobRow(plan.job_id, now_s, plan.workflow.name, plan.service_class, plan.deadline_s)
        self._jobs[plan.job_id] = _Job(plan, row, self._predictor.remaining(plan))
        deadline_s = None if plan.deadline_s is None else now_s + plan.deadline_s
        self.post(JobSubmitted(plan.job_id, plan.workflow, plan.service_class, now_s, deadline_s))

    # --- events in, effects out -----------------------------------------------------------------

    def post(self, event: CoordinatorEvent) -> None:
        """Handle the event and carry out what follows; events posted meanwhile wait their turn."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        now_s = self._loop.now_s
        while self._events:
            event = self._events.popleft()
            if self._listen is not None:
                self._listen(event, now_s)
            self._observe(event, now_s)
            effects = self.core.handle(event, now_s)
            if self._log is not None:
                self._log.append(event, now_s, effects)
            for effect in effects:
                self._carry_out(effect, now_s)
        self._handling = False

    def _observe(self, event: CoordinatorEvent, now_s: float) -> None:
        kind = type(event)
        if kind is StageStarted:
            assert isinstance(event, StageStarted)
            stage = self._stages.get(event.stage_id)
            if stage is not None and stage.row.attempt == event.attempt:
                stage.row.first_byte_at = now_s
        elif kind is StageEnded:
            assert isinstance(event, StageEnded)
            stage = self._stages.get(event.stage_id)
            if stage is not None and event.usage is not None:
                stage.row.output_tokens = event.usage.output_tokens
                stage.row.cached_tokens = event.usage.cached_tokens

    def _carry_out(self, effect: CoordinatorEffect, now_s: float) -> None:
        match effect:
            case RecordDecision():
                if self._record is not None:
                    self._record(effect.record)
            case DispatchStage():
                self._dispatch(effect, now_s)
            case ResolveStage():
                self._resolved(effect, now_s)
            case SetTimer():
                self._timers.set(effect.timer_id, effect.at_s)
            case CancelTimer():
                self._timers.cancel(effect.timer_id)
            case PrepareStep():
                plan = self._jobs[effect.job_id].plan
                width = plan.widths.get((effect.step, effect.visit), 1)
                self._events.append(StepPrepared(effect.job_id, effect.step, effect.visit, width))
            case RunStep():
                ref = effect.ref
                run = (ref.step, ref.visit, ref.item)
                self._call(self._jobs[effect.job_id], run, 0)
            case FinishJob():
                self._finish(effect, now_s)
            case WithdrawStage():
                node = self._nodes[effect.node]
                self._loop.after(node.rtt_s / 2, node.relay.withdraw, effect.stage_id)
            case RebookStage():
                self._rebook(effect)
            case AdvisePrewarm():
                self._advise(effect)
            case _:
                assert_never(effect)

    def _dispatch(self, effect: DispatchStage, now_s: float) -> None:
        stage = self._stages[effect.stage_id]
        row = stage.row
        row.attempt, row.dispatched_at = effect.attempt, now_s
        row.model, row.node = effect.model, effect.node
        row.first_byte_at = None
        offer = StageOffered(
            effect.stage_id,
            effect.attempt,
            effect.model,
            effect.epoch,
            effect.seq,
            effect.prompt_tokens,
            effect.booked_tokens,
            effect.service_class,
            effect.key,
        )
        node = self._nodes[effect.node]
        conversation = f"{row.job_id}/{stage.call.role}"
        self._loop.after(
            node.rtt_s / 2,
            node.relay.offer,
            offer,
            stage.call.tokens_on(effect.model),
            conversation,
        )

    def _rebook(self, effect: RebookStage) -> None:
        node = self._nodes[effect.node]
        event = StageRebooked(
            effect.stage_id,
            effect.attempt,
            effect.epoch,
            effect.seq,
            effect.prompt_tokens,
            effect.booked_tokens,
        )
        self._loop.after(node.rtt_s / 2, node.relay.rebook, event)

    def _advise(self, effect: AdvisePrewarm) -> None:
        node = self._nodes[effect.node]
        advice = PrewarmAdvised(
            effect.model, effect.probability, effect.expected_at_s, effect.epoch, effect.seq
        )
        self._loop.after(node.rtt_s / 2, node.post, advice)

    # --- what nodes tell apart from events ------------------------------------------------------

    def activated(self, stage_id: StageId, kind: str, seconds: float) -> None:
        """What the stage waited for on its node."""
        stage = self._stages.get(stage_id)
        if stage is not None:
            stage.row.activation, stage.row.activation_s = kind, seconds

    # --- runs of steps --------------------------------------------------------------------------

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
        now_s = self._loop.now_s
        position, invocation = self.core.next_position(plan.job_id, call.role)
        stage_id = StageId(f"{plan.job_id}/{job.row.num_stages}")
        stage = StageDescriptor(
            stage_id=stage_id,
            job_id=plan.job_id,
            candidates=call.models,
            arrival_s=now_s,
            prompt_tokens=PromptTokens(0, call.prompt_tokens, call.prompt_tokens),
            workflow=plan.workflow.name,
            step=run[0],
            role=call.role,
            service_class=plan.service_class,
            deadline_s=None if plan.deadline_s is None else job.row.submitted_at + plan.deadline_s,
            position=position,
            depth=index,
            invocation_index=invocation,
            tools_available=call.tools_available,
            external=False,
        )
        row = StageRow(
            stage_id, plan.job_id, 0, now_s, run[0], call.role, plan.service_class,
            prompt_tokens=call.prompt_tokens,
        )  # fmt: skip
        job.row.num_stages += 1
        self._stages[stage_id] = _Stage(job, run, index, call, row)
        prediction = self._predictor.predict(
            call, job.remaining[run][index], plan.confidence, plan.workflow.name
        )
        if self._prediction_s is not None and self.core.has_room(stage):
            self._post_inside(StageArrived(stage, PRIOR))
            late = PredictionArrived(stage_id, prediction)
            self._loop.after(self._prediction_s, self.post, late)
        else:
            self._post_inside(StageArrived(stage, prediction))

    def _post_inside(self, event: CoordinatorEvent) -> None:
        if self._handling:
            self._events.append(event)
        else:
            self.post(event)

    def _resolved(self, effect: ResolveStage, now_s: float) -> None:
        stage = self._stages.pop(effect.stage_id)
        row, plan = stage.row, stage.job.plan
        row.outcome, row.reason, row.ended_at = effect.outcome, effect.reason, now_s
        self.stages.append(row)
        if effect.outcome is not Outcome.FINISHED:
            if plan.job_id in self._jobs:
                ref = StepRef(*stage.run)
                reason = effect.reason
                self._events.append(StepFailed(plan.job_id, ref, effect.outcome, reason))
            return
        tool_s = stage.call.tool_s
        if tool_s > 0:
            self._loop.after(tool_s, self._tools_done, stage)
        else:
            self._call(stage.job, stage.run, stage.index + 1)

    def _tools_done(self, stage: _Stage) -> None:
        plan = stage.job.plan
        if plan.job_id in self._jobs:
            self.post(ToolsRan(plan.job_id, stage.run[0], stage.call.tool_s))
            self._call(stage.job, stage.run, stage.index + 1)

    def _end_run(self, plan: JobPlan, run: Run) -> None:
        step, visit, item = run
        width = plan.widths.get((step, visit), 1)
        result = StepResult(StepRef(step, visit, item), width, run in plan.goes_back)
        self._post_inside(StepFinished(plan.job_id, result))

    def _finish(self, effect: FinishJob, now_s: float) -> None:
        row = self._jobs.pop(effect.job_id).row
        row.status, row.reason, row.finished_at = effect.status, effect.reason, now_s
        self.jobs.append(row)
        self.num_open -= 1
        if not self.num_open:
            self._loop.stop()
