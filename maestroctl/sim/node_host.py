"""A simulated node: owns a `NodeCore`, carries its effects out in profile time.

The counterpart of `live.node`: this is the daemon's host, `relay` its relay, `engine` one engine.
What the coordinator is told arrives half a round trip later.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import DeviceName, ModelName, StageId
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.records import DecisionRecord
from maestroctl.scheduler.effects import (
    AbortStage,
    AnswerModelAction,
    CancelTimer,
    ForwardStage,
    NodeEffect,
    NodeEmptied,
    PublishSnapshot,
    RecordDecision,
    RefuseStage,
    ResumeEngine,
    SetKvLimit,
    SetTimer,
    SleepEngine,
    StartEngine,
    StopEngine,
    SuspendEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import (
    NodeEvent,
    NodeSnapshotReceived,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.sim.device import Device
from maestroctl.sim.engine import SimEngine
from maestroctl.sim.engine_model import EngineModel
from maestroctl.sim.loop import EventLoop, Timers
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.relay import SimRelay
from maestroctl.telemetry.recorder import EventLog

if TYPE_CHECKING:
    from maestroctl.sim.coordinator_host import SimCoordinator

NodeMessage = StageRefused | StageStarted | StageProgressed | StageEnded | NodeSnapshotReceived
"""What a node tells the coordinator."""


class SimNode:
    """Runs one `NodeCore` on the event loop.

    Args:
        devices: budgets, ``host`` included.
        max_num_batched_tokens: of every engine.
        prefix_cache: engines keep what conversations had before.

    Attributes:
        relay: where the coordinator sends stages.
        num_transitions: engine effects by kind.
    """

    def __init__(
        self,
        loop: EventLoop,
        spec: NodeSpec,
        policy: PolicySpec,
        devices: Mapping[DeviceName, int],
        profiles: Mapping[ModelName, ModelProfile],
        models: Mapping[ModelName, ModelSpec],
        abilities: Mapping[ModelName, EngineAbilities],
        network: NetworkSpec,
        *,
        rtt_s: float | None = None,
        max_num_batched_tokens: int = 2048,
        prefix_cache: bool = False,
        record: Callable[[DecisionRecord], None] | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.name = spec.name
        self.core = NodeCore(spec, policy, devices, profiles, models, abilities)
        self.rtt_s = network.rtt_s if rtt_s is None else rtt_s
        self.relay = SimRelay(loop, self, prefix_cache=prefix_cache)
        self.num_transitions: Counter[str] = Counter()
        self._coordinator: SimCoordinator | None = None
        self._loop = loop
        self._network = network
        self._record = record
        self._log = log
        cards = {device: Device() for device in devices}
        self._engines: dict[str, SimEngine] = {
            f"{name}@{spec.name}": SimEngine(
                loop,
                profile,
                cards,
                self.relay,
                self.post,
                max_num_seqs=min(profile.max_batch, models[name].max_batch),
                max_num_batched_tokens=max_num_batched_tokens,
            )
            for name, profile in profiles.items()
        }
        self._timers = Timers(loop, lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[NodeEvent] = deque()
        self._handling = False
        self._snapshot_due = False

    @property
    def engines(self) -> Mapping[str, EngineModel]:
        """Engine models by engine id, of processes that are up."""
        return {n: e.model for n, e in self._engines.items() if e.model is not None}

    def busy_s(self) -> dict[str, float]:
        """Seconds in which each engine ran iterations."""
        return {name: engine.busy_s for name, engine in self._engines.items()}

    def num_preempted(self) -> int:
        """Recompute preemptions of all engines."""
        return sum(engine.num_preempted for engine in self._engines.values())

    # --- events in, effects out -----------------------------------------------------------------

    def post(self, event: NodeEvent) -> None:
        """Handle the event and carry out what follows; events posted meanwhile wait their turn."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        while self._events:
            event = self._events.popleft()
            effects = self.core.handle(event, self._loop.now_s)
            if self._log is not None:
                self._log.append(event, self._loop.now_s, effects)
            for effect in effects:
                self._carry_out(effect)
        self._handling = False

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case ForwardStage():
                self.relay.forward(effect.stage_id, self._engines[effect.engine_id])
            case RefuseStage():
                self.relay.refuse(effect)
            case AbortStage():
                self.relay.abort(effect)
            case SetTimer():
                self._timers.set(effect.timer_id, effect.at_s)
            case CancelTimer():
                self._timers.cancel(effect.timer_id)
            case PublishSnapshot():
                if not self._snapshot_due:
                    self._snapshot_due = True
                    self._loop.after(self._network.send_soon_s, self._send_snapshot)
            case RecordDecision():
                if self._record is not None:
                    self._record(effect.record)
            case SetKvLimit():
                self._engines[effect.engine_id].set_kv_limit(effect.kv_limit_bytes)
            case (
                StartEngine()
                | WakeEngine()
                | SleepEngine()
                | SuspendEngine()
                | ResumeEngine()
                | StopEngine()
            ):
                self.num_transitions[type(effect).__name__] += 1
                self._engines[effect.engine_id].begin(effect)
            case AnswerModelAction() | NodeEmptied():
                pass
            case _:
                assert_never(effect)

    # --- to the coordinator ---------------------------------------------------------------------

    def connect(self, coordinator: SimCoordinator) -> None:
        """Send the first snapshot, then regular ones."""
        self._coordinator = coordinator
        self._send_snapshot()
        if self._network.snapshot_every_s is not None:
            self._loop.tick(self._network.snapshot_every_s, self._tick)
        if self._network.progress_every_s is not None:
            self._loop.tick(self._network.progress_every_s, self._tell_progress)

    def tell(self, event: NodeMessage) -> None:
        """Send it to the coordinator."""
        assert self._coordinator is not None
        self._loop.after(self.rtt_s / 2, self._coordinator.post, event)

    def tell_activation(self, stage_id: StageId, kind: str, seconds: float) -> None:
        """What the stage waited for; goes with its first byte."""
        assert self._coordinator is not None
        self._coordinator.activated(stage_id, kind, seconds)

    def _send_snapshot(self) -> None:
        self.tell(self._snapshot())

    def _snapshot(self) -> NodeSnapshotReceived:
        self._snapshot_due = False
        return NodeSnapshotReceived(self.core.snapshot(self._loop.now_s), self.rtt_s)

    def _tick(self) -> None:
        assert self._network.snapshot_every_s is not None
        assert self._coordinator is not None
        self._loop.tick(self.rtt_s / 2, self._coordinator.post, self._snapshot())
        self._loop.tick(self._network.snapshot_every_s, self._tick)

    def _tell_progress(self) -> None:
        for model in self.engines.values():
            self.relay.tell_progress(model)
        assert self._network.progress_every_s is not None
        self._loop.tick(self._network.progress_every_s, self._tell_progress)
