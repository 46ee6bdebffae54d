"""A fake fleet and a fake host around `CoordinatorCore`, with a ledger of its own.

The ledger knows nothing of the core's tables: it follows the effects and says what may not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.domain.workflow import WorkflowSpec
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
    StepRef,
    StepResult,
)
from maestroctl.testing.coordinator_builders import (
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_step,
    make_workflow,
    submission,
)

MODELS = ("a", "b")
FAILED, ABSENT = -2, -1
"""In place of a number of slots: the engine has failed; there has been none yet."""
NODES = {"n1": ("a", "b"), "n2": ("a",)}
WORKFLOWS = (
    make_workflow(make_step("one")),
    make_workflow(
        make_step("plan"),
        make_step("code", ["plan"]),
        make_step("review", ["code"], back_to="code", at_most=2),
        make_step("docs", ["plan"]),
        make_step("end", ["review", "docs"]),
    ),
    make_workflow(
        make_step("plan"),
        make_step("work", ["plan"], fan_out=True),
        make_step("join", ["work"], back_to="plan", at_most=2),
    ),
)


@dataclass
class Sent:
    """An attempt that is at a node."""

    attempt: int
    node: str
    model: str
    seq: int
    started: bool = False


@dataclass
class FakeNode:
    """What a node would say in its next snapshot."""

    slots: dict[str, int]
    applied_seq: int = 0
    draining: bool = False
    said_slots: dict[str, int] = field(default_factory=dict)
    said_draining: bool = False


@dataclass
class FakeJob:
    """A submitted job, as the store knows it."""

    workflow: WorkflowSpec
    finished: list[StepResult] = field(default_factory=list)
    preparing: dict[tuple[str, int], None] = field(default_factory=dict)
    running: dict[StepRef, int] = field(default_factory=dict)
    widths: dict[tuple[str, int], int] = field(default_factory=dict)
    status: JobStatus = JobStatus.RUNNING


class World:
    """Feeds a core, carries out its effects, and checks each of them."""

    def __init__(
        self, max_queued: int = 6, ordering: str = "fcfs", routing: str = "single_node"
    ) -> None:
        self.policy = PolicySpec(ordering=ordering, routing=routing)
        self.max_queued = max_queued
        self.ids: Iterator[int] = count()
        self.jobs: dict[str, FakeJob] = {}
        self.now_s = 0.0
        self.epoch = 0
        self.nodes: dict[str, FakeNode] = {
            name: FakeNode(dict.fromkeys(models, 2)) for name, models in NODES.items()
        }
        self.begin()

    def begin(self) -> None:
        """A coordinator starts: nodes are not connected, stages of its predecessor are gone."""
        self.epoch += 1
        self.core = CoordinatorCore(
            make_fleet(MODELS, NODES, self.policy), self.epoch, max_queued=self.max_queued
        )
        self.timers: dict[str, float] = {}
        self.connected: dict[str, None] = {}
        self.stages: dict[str, StageDescriptor] = {}
        self.models: dict[str, tuple[str, ...]] = {}  # as chosen, of live stages
        self.live: dict[str, None] = {}  # arrived, not resolved
        self.sent: dict[str, Sent] = {}
        self.attempts: dict[str, int] = {}
        self.first_byte: dict[str, None] = {}
        self.resolved: dict[str, Outcome] = {}
        self.last_seq = 0
        self.q90: dict[str, int] = {}
        self.tokens: dict[str, int] = {}  # so far, of the attempt that is at a node
        self.booked: dict[str, int] = {}
        self.closing = False
        self.expected_stale = 0
        for node in self.nodes.values():
            node.applied_seq = 0

    def restart(self) -> None:
        """Kill -9 and start again: only what the store has survives."""
        self.begin()
        for job_id, job in self.jobs.items():
            if job.status is JobStatus.RUNNING:
                job.preparing.clear()
                job.running.clear()
                self.tell(submission(job.workflow, job_id, job.finished))

    def tell(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        """One event, its effects carried out and checked."""
        if isinstance(event, StageArrived):
            self.stages[event.stage.stage_id] = event.stage
            self.live[event.stage.stage_id] = None
            self.attempts[event.stage.stage_id] = 0
        effects = self.core.handle(event, self.now_s)
        views = (*self.core.queued(), *self.core.in_flight())
        self.models = {view.stage_id: view.models for view in views}
        for effect in effects:
            self.carry_out(effect)
        self.core.validate()
        assert self.core.counters.stale == self.expected_stale, event
        return effects

    # --- effects --------------------------------------------------------------------------------

    def carry_out(self, effect: CoordinatorEffect) -> None:
        match effect:
            case DispatchStage():
                self.on_dispatch(effect)
            case RebookStage():
                sent = self.sent[effect.stage_id]
                assert (sent.attempt, sent.node) == (effect.attempt, effect.node)
                assert effect.booked_tokens == self.expected_booking(effect.stage_id)
                assert effect.booked_tokens != self.booked[effect.stage_id], "says nothing new"
                self.booked[effect.stage_id] = effect.booked_tokens
                assert effect.seq > self.last_seq
                self.last_seq = effect.seq
            case WithdrawStage():
                sent = self.sent.pop(effect.stage_id)
                assert (sent.attempt, sent.node) == (effect.attempt, effect.node)
            case ResolveStage():
                assert effect.stage_id not in self.resolved, "resolved twice"
                assert effect.stage_id not in self.sent, "resolved while at a node"
                del self.live[effect.stage_id]
                self.resolved[effect.stage_id] = effect.outcome
            case SetTimer():
                self.timers[effect.timer_id] = effect.at_s
            case CancelTimer():
                del self.timers[effect.timer_id]
            case PrepareStep():
                job = self.jobs[effect.job_id]
                assert job.status is JobStatus.RUNNING
                assert (effect.step, effect.visit) not in job.preparing
                job.preparing[(effect.step, effect.visit)] = None
            case RunStep():
                job = self.jobs[effect.job_id]
                assert effect.ref not in job.running
                assert effect.ref not in [result.ref for result in job.finished], "done twice"
                job.running[effect.ref] = job.widths[(effect.ref.step, effect.ref.visit)]
            case FinishJob():
                job = self.jobs[effect.job_id]
                assert job.status is JobStatus.RUNNING, "finished twice"
                job.status = effect.status
                job.preparing.clear()
                job.running.clear()
            case RecordDecision() | AdvisePrewarm():
                pass

    def expected_booking(self, stage_id: str) -> int:
        """Prompt and the admission quantile that was told last, at least what came."""
        output = max(self.q90.get(stage_id, 100), self.tokens.get(stage_id, 0))
        return self.stages[stage_id].prompt_tokens.full + output

    def predict(self, stage_id: str, q90: int) -> None:
        """A better prediction comes: what is at a node is booked by it there, and goes on."""
        dispatched, self.q90[stage_id] = self.sent.get(stage_id), q90
        changed = dispatched and self.booked[stage_id] != self.expected_booking(stage_id)
        effects = self.tell(PredictionArrived(StageId(stage_id), Prediction(10.0, float(q90))))
        told = [effect for effect in effects if isinstance(effect, RebookStage)]
        assert len(told) == bool(changed)
        assert self.sent.get(stage_id) is dispatched, "a prediction moves nothing"

    def on_dispatch(self, effect: DispatchStage) -> None:
        stage = self.stages[effect.stage_id]
        assert effect.stage_id in self.live
        assert effect.stage_id not in self.sent, "sent twice"
        assert effect.stage_id not in self.first_byte, "tried again after its first byte"
        assert effect.node in self.connected
        assert not self.nodes[effect.node].said_draining
        assert effect.model in stage.candidates
        assert effect.epoch == self.epoch
        assert effect.seq > self.last_seq
        assert effect.attempt == self.attempts[effect.stage_id] + 1
        self.tokens.pop(effect.stage_id, None)
        assert effect.booked_tokens == self.expected_booking(effect.stage_id)
        self.booked[effect.stage_id] = effect.booked_tokens
        self.last_seq = effect.seq
        self.check_order(stage, effect)
        self.attempts[effect.stage_id] = effect.attempt
        self.sent[effect.stage_id] = Sent(effect.attempt, effect.node, effect.model, effect.seq)
        here = [s for s in self.sent.values() if (s.node, s.model) == (effect.node, effect.model)]
        assert len(here) <= self.nodes[effect.node].said_slots[effect.model], "beyond its slots"

    def check_order(self, stage: StageDescriptor, effect: DispatchStage) -> None:
        """FCFS among stages that the model may serve and that have not had a turn."""
        if effect.attempt > 1 or self.policy.ordering != "fcfs" or self.policy.routing == "maestro":
            return
        for stage_id in self.live:
            other = self.stages[stage_id]
            if stage_id in self.sent or self.attempts[stage_id] or stage_id == stage.stage_id:
                continue
            if effect.model in self.models.get(stage_id, ()):
                assert (other.arrival_s, stage_id) > (stage.arrival_s, stage.stage_id)

    # --- nodes ----------------------------------------------------------------------------------

    def publish(self, name: str) -> None:
        """The node connects, or says what it looks like now."""
        node = self.nodes[name]
        self.connected[name] = None
        node.applied_seq = max(
            [node.applied_seq, *(s.seq for s in self.sent.values() if s.node == name)]
        )
        engines, profiles = [], []
        node.said_slots, node.said_draining = {}, node.draining
        for model in NODES[name]:
            slots = node.slots[model]
            profiles.append(make_profile(model, max_batch=2))
            node.said_slots[model] = 3  # assumed while there is no engine: two, and one more
            if slots == FAILED:
                engines.append(make_engine(model, 0, EngineStatus.FAILED, name))
                node.said_slots[model] = 1  # one at a time may ask
            elif slots != ABSENT:
                status = EngineStatus.IDLE if slots else EngineStatus.DRAINING
                engines.append(make_engine(model, slots, status, name))
                node.said_slots[model] = slots
        self.tell(
            NodeSnapshotReceived(
                make_snapshot(
                    name,
                    engines,
                    profiles,
                    as_of_s=self.now_s,
                    applied_seq=node.applied_seq,
                    epoch=self.epoch,
                    draining=node.draining,
                )
            )
        )

    def lose(self, name: str) -> None:
        """The connection to the node breaks."""
        del self.connected[name]
        lost = [stage_id for stage_id, sent in self.sent.items() if sent.node == name]
        before = {stage_id: self.sent.pop(stage_id) for stage_id in lost}
        self.tell(NodeLost(NodeName(name), "cable"))
        for stage_id, sent in before.items():
            if sent.started:
                assert self.resolved[stage_id] is Outcome.FAILED

    def fire_due(self) -> list[str]:
        """Names of the timers whose time has come, in order."""
        due = [name for name, at_s in self.timers.items() if at_s <= self.now_s]
        return sorted(due, key=lambda name: (self.timers[name], name))
