"""The simulated coordinator: owns a `CoordinatorCore`, sends to nodes, keeps the stages' rows.

The counterpart of `live.coordinator`; what jobs do between their stages is the matter of `runner`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.prediction import PRIOR, Prediction
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import StageDescriptor
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
    PredictionArrived,
    PrewarmAdvised,
    StageArrived,
    StageEnded,
    StageOffered,
    StageRebooked,
    StageStarted,
    TimerFired,
)
from maestroctl.sim.jobs import StageRow
from maestroctl.sim.loop import EventLoop, Timers
from maestroctl.sim.prediction import Predictor
from maestroctl.sim.runner import OpenStage, SimRunner
from maestroctl.telemetry.recorder import EventLog

if TYPE_CHECKING:
    from maestroctl.sim.node_host import SimNode


class SimCoordinator:
    """Runs one `CoordinatorCore` on the event loop.

    Args:
        prediction_s: as in `NetworkSpec`.

    Attributes:
        stages: rows of those that ended, in order of their end.
        runner: plays the jobs.
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
        self.runner = SimRunner(loop, self, predictor)
        self._loop = loop
        self._nodes = nodes
        self._record = record
        self._listen = listen
        self._log = log
        self._prediction_s = prediction_s
        self._open: dict[StageId, OpenStage] = {}
        self._timers = Timers(loop, lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[CoordinatorEvent] = deque()
        self._handling = False

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
            self._observe(event)
            effects = self.core.handle(event, now_s)
            if self._log is not None:
                self._log.append(event, now_s, effects)
            for effect in effects:
                self._carry_out(effect)
        self._handling = False

    def _observe(self, event: CoordinatorEvent) -> None:
        """Note in the stage's row what its node says of it."""
        if isinstance(event, StageStarted):
            stage = self._open.get(event.stage_id)
            if stage is not None and stage.row.attempt == event.attempt:
                stage.row.first_byte_at = self._loop.now_s
        elif isinstance(event, StageEnded):
            stage = self._open.get(event.stage_id)
            if stage is not None and event.usage is not None:
                stage.row.output_tokens = event.usage.output_tokens
                stage.row.cached_tokens = event.usage.cached_tokens

    def _carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case RecordDecision():
                if self._record is not None:
                    self._record(effect.record)
            case DispatchStage():
                self._dispatch(effect)
            case ResolveStage():
                self._close(effect)
            case SetTimer():
                self._timers.set(effect.timer_id, effect.at_s)
            case CancelTimer():
                self._timers.cancel(effect.timer_id)
            case PrepareStep():
                self.runner.prepare(effect)
            case RunStep():
                self.runner.run(effect.job_id, effect.ref)
            case FinishJob():
                self.runner.finish(effect)
            case WithdrawStage():
                node = self._nodes[effect.node]
                self._loop.after(node.rtt_s / 2, node.relay.withdraw, effect.stage_id)
            case RebookStage():
                self._rebook(effect)
            case AdvisePrewarm():
                self._advise(effect)
            case _:
                assert_never(effect)

    # --- stages ---------------------------------------------------------------------------------

    def open(self, stage: OpenStage, descriptor: StageDescriptor, prediction: Prediction) -> None:
        """A stage arrives."""
        stage_id = descriptor.stage_id
        self._open[stage_id] = stage
        if self._prediction_s is not None and self.core.has_room(descriptor):
            self.post(StageArrived(descriptor, PRIOR))
            late = PredictionArrived(stage_id, prediction)
            self._loop.after(self._prediction_s, self.post, late)
        else:
            self.post(StageArrived(descriptor, prediction))

    def activated(self, stage_id: StageId, kind: str, seconds: float) -> None:
        """What the stage waited for on its node."""
        stage = self._open.get(stage_id)
        if stage is not None:
            stage.row.activation, stage.row.activation_s = kind, seconds

    def _close(self, effect: ResolveStage) -> None:
        stage = self._open.pop(effect.stage_id)
        row = stage.row
        row.outcome, row.reason, row.ended_at = effect.outcome, effect.reason, self._loop.now_s
        self.stages.append(row)
        self.runner.stage_ended(stage, effect.outcome, effect.reason)

    # --- to nodes -------------------------------------------------------------------------------

    def _dispatch(self, effect: DispatchStage) -> None:
        stage = self._open[effect.stage_id]
        row = stage.row
        row.attempt, row.dispatched_at = effect.attempt, self._loop.now_s
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
        tokens = stage.call.tokens_on(effect.model)
        conversation = f"{row.job_id}/{stage.call.role}"
        self._loop.after(node.rtt_s / 2, node.relay.offer, offer, tokens, conversation)

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
