"""Owns `CoordinatorCore`: gives it events one at a time and carries out its effects.

A stage comes in through `run` (from the gateway or from a workflow step), its effects go to its
own task (`stage_call`), its times to the ledger. Jobs go to the workflow runner. Nodes report
through their links. An `InvariantViolation` of the core stops the coordinator with its story.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, assert_never

from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.llm import EngineKind
from maestroctl.domain.messages import Prewarm, Rebook
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.errors import Overloaded
from maestroctl.gateway.submit import StageCall, StageReply
from maestroctl.live.coordinator.event_bus import EventBus
from maestroctl.live.coordinator.node_link import NodeLink
from maestroctl.live.coordinator.prediction_desk import PredictionDesk
from maestroctl.live.coordinator.stage_call import StageCalls
from maestroctl.live.coordinator.stage_ledger import StageLedger
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.timers import LoopTimers, core_now_s
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
    NodeLost,
    NodeSnapshotReceived,
    PredictionArrived,
    StageArrived,
    StageEnded,
    StageProgressed,
    StageStarted,
    TimerFired,
)
from maestroctl.store.journal import Journal
from maestroctl.telemetry.exposition import Telemetry
from maestroctl.telemetry.recorder import EventLog, NoLog

JobEffect = PrepareStep | RunStep | FinishJob


class CoordinatorHost:
    """Runs one `CoordinatorCore` on the event loop; a `StageService` and a `LinkListener`.

    Args:
        core: its owner is this host.
        predictions: what is known of a stage before it runs.
        on_bug: called once with an error that must end the coordinator.
        log: of what the core is told and asks for; None = none is kept. Its maker closes it.
    """

    def __init__(
        self,
        fleet: FleetSpec,
        core: CoordinatorCore,
        journal: Journal,
        telemetry: Telemetry,
        predictions: PredictionDesk,
        on_bug: Callable[[BaseException], None],
        log: EventLog | None = None,
    ) -> None:
        self.fleet = fleet
        self.core = core
        self.bus = EventBus()
        self.links: dict[NodeName, NodeLink] = {}
        self.snapshots: dict[NodeName, NodeSnapshot] = {}
        self.wall_offset_s = time.time() - core_now_s()
        self.now_s = core_now_s
        self.ledger = StageLedger(journal, telemetry, self.bus, core_now_s, self.wall_offset_s)
        telemetry.load = lambda: self.ledger.load(core.counters.stale, core.kept_slots())
        self.calls = StageCalls(self.post, self._pool, self._engine_body, self.ledger.activated)
        self.carry_out_job: Callable[[JobEffect], None] = _no_jobs
        self._journal = journal
        self._telemetry = telemetry
        self.predictions = predictions
        self._improving: set[asyncio.Task[None]] = set()
        self._on_bug = on_bug
        self._log = log or NoLog()
        self._timers = LoopTimers(lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[CoordinatorEvent] = deque()
        self._handling = False

    # --- events in, effects out -----------------------------------------------------------------

    def post(self, event: CoordinatorEvent) -> None:
        """Handle the event and carry out what follows; events posted meanwhile wait their turn."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                now_s = self.now_s()
                self._observe(event, now_s)
                for effect in self._handle(event, now_s):
                    self._carry_out(effect, now_s)
        except Exception as exc:
            self._on_bug(exc)
        finally:
            self._handling = False

    def _handle(self, event: CoordinatorEvent, now_s: float) -> list[CoordinatorEffect]:
        try:
            effects = self.core.handle(event, now_s)
        except Exception as exc:
            self._log.append(event, now_s, error=f"{type(exc).__name__}: {exc}")
            self._log.flush()
            raise
        self._log.append(event, now_s, effects)
        return effects

    def _observe(self, event: CoordinatorEvent, now_s: float) -> None:
        match event:
            case StageArrived():
                call = self.calls.get(event.stage.stage_id)
                self.ledger.arrived(event, streamed=call is None or call.call.stream)
            case StageStarted():
                self.ledger.started(event, now_s)
            case StageEnded():
                self.ledger.ended(event, now_s)
                self.predictions.ended(event)
            case StageProgressed():
                self.predictions.progressed(event)
            case PredictionArrived():
                self.ledger.predicted(event)
            case _:
                pass

    def _carry_out(self, effect: CoordinatorEffect, now_s: float) -> None:
        match effect:
            case DispatchStage():
                self.ledger.dispatched(effect, now_s)
                self.predictions.dispatched(effect)
                self.calls.deliver(effect)
            case RebookStage():
                self.links[effect.node].send(_rebook(effect))
            case WithdrawStage():
                self.calls.deliver(effect)
            case ResolveStage():
                self.ledger.resolved(effect, now_s)
                self.predictions.resolved(effect)
                self.calls.deliver(effect)
            case RecordDecision():
                self.ledger.decided(effect.record)
            case SetTimer():
                self._timers.set(effect.timer_id, effect.at_s)
            case CancelTimer():
                self._timers.cancel(effect.timer_id)
            case PrepareStep() | RunStep():
                self.carry_out_job(effect)
            case FinishJob():
                complete = effect.status is JobStatus.FINISHED
                self.predictions.job_ended(effect.job_id, complete=complete)
                self.carry_out_job(effect)
            case AdvisePrewarm():
                in_s = max(0.0, effect.expected_at_s - now_s)
                advice = Prewarm(effect.model, effect.probability, in_s, effect.epoch, effect.seq)
                self.links[effect.node].send(advice)
            case _:
                assert_never(effect)

    # --- StageService ---------------------------------------------------------------------------

    async def run(self, call: StageCall) -> StageReply:
        """See `gateway.submit.StageService.run`."""
        if self._journal.is_behind:
            raise Overloaded("the state database cannot keep up", retry_after_s=2.0)
        return await self.calls.run(call, StageArrived(call.stage, await self._predict(call)))

    async def _predict(self, call: StageCall) -> Prediction:
        """The fallback at once when a slot is free: the models then only correct what was booked.

        Else the stage will wait or choose a model anyway, and does that on the better figures.
        """
        stage_id, desk = call.stage.stage_id, self.predictions
        fallback = desk.begin(call.stage, call.text)
        if not desk.asks_models:
            return fallback
        if self.core.has_room(call.stage):
            task = asyncio.create_task(self._correct(stage_id))
            self._improving.add(task)
            task.add_done_callback(self._improving.discard)
            return fallback
        try:
            return await desk.improve(stage_id) or fallback
        except BaseException:
            desk.forget(stage_id)
            raise

    async def _correct(self, stage_id: StageId) -> None:
        better = await self.predictions.improve(stage_id, waits=False)
        if better is not None:
            self.post(PredictionArrived(stage_id, better))

    def _pool(self, node: NodeName) -> HttpPool:
        return self.links[node].pool

    def _engine_body(self, call: StageCall, dispatch: DispatchStage) -> Mapping[str, Any]:
        """The request as the chosen engine wants it: its own model name, usage, our order."""
        model = self.fleet.models[dispatch.model]
        body = {**call.body, "model": model.upstream_name or model.name}
        if call.stream and call.path in ("/v1/chat/completions", "/v1/completions"):
            body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
        kind = self.fleet.engines[model.engine].kind
        if kind in (EngineKind.VLLM, EngineKind.VLLM_CPU) and model.url is None:
            body["priority"] = round(dispatch.key * 1000)
        return body

    # --- LinkListener ---------------------------------------------------------------------------

    def node_snapshot(self, snapshot: NodeSnapshot, rtt_s: float) -> None:
        """A node says what it looks like."""
        self.snapshots[snapshot.node] = snapshot
        self._telemetry.set_fleet(tuple(self.snapshots.values()))
        self.bus.publish("node", "", node=snapshot.node)
        self.post(NodeSnapshotReceived(snapshot, rtt_s))

    def node_lost(self, node: NodeName, reason: str) -> None:
        """A node is gone."""
        if self.snapshots.pop(node, None) is not None:
            self._telemetry.set_fleet(tuple(self.snapshots.values()))
            self.post(NodeLost(node, reason))

    def node_decided(self, node: NodeName, records: tuple[DecisionRecord, ...]) -> None:
        """Decisions a node took."""
        del node
        for record in records:
            self.ledger.decided(record)

    def close(self) -> None:
        """Forget the timers and what is still asked."""
        self._timers.close()
        for task in self._improving:
            task.cancel()


def _rebook(effect: RebookStage) -> Rebook:
    return Rebook(
        effect.stage_id,
        effect.attempt,
        effect.epoch,
        effect.seq,
        effect.prompt_tokens,
        effect.booked_tokens,
    )


def _no_jobs(effect: JobEffect) -> None:
    raise AssertionError(f"no workflow runner for {effect}")
