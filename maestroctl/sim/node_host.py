"""A simulated node: owns a `NodeCore`, carries its effects out in profile time.

The counterpart of `live.node`: the daemon's host and its relay. Transitions take the times of the
profile and always succeed; readings are what the profile says. A stage's path is the relay's:
offer, verdict, first byte, outgrown booking, end. What the coordinator is told arrives half a
round trip later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from maestroctl.domain.engine import EngineAbilities, EngineReadings
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import DeviceName, ModelName, StageId
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.outcome import Outcome, Usage
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
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageProgressed,
    StageRebooked,
    StageRefused,
    StageSentFirstByte,
    StageStarted,
    StageWithdrawn,
    TimerFired,
    TransitionFinished,
)
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.sim.engine_model import Device, EngineModel, Sequence
from maestroctl.sim.loop import EventLoop, Handle, Timers
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prefix_cache import PrefixCache
from maestroctl.telemetry.recorder import EventLog

if TYPE_CHECKING:
    from maestroctl.sim.coordinator_host import SimCoordinator

STOP_S = 0.5
"""From SIGTERM to the group being gone; profiles do not measure it."""
NodeMessage = StageRefused | StageStarted | StageProgressed | StageEnded | NodeSnapshotReceived
"""What a node tells the coordinator."""
_BOOK_AHEAD_TOKENS = 128
"""An outgrown booking is raised by this much more, as the live relay does."""

EngineEffect = StartEngine | WakeEngine | SleepEngine | SuspendEngine | ResumeEngine | StopEngine


_LEAVING_S = 0.5  # an iteration and a bit: by then an aborted sequence has left its batch


class _Stage:
    """A stage in the node."""

    __slots__ = (
        "aborted",
        "attempt",
        "cached",
        "conversation",
        "engine",
        "offer",
        "offered_s",
        "output",
        "sent",
    )

    def __init__(self, offer: StageOffered, output: int, conversation: str, now_s: float) -> None:
        self.offer = offer
        self.attempt = offer.attempt
        self.output = output
        self.conversation = conversation
        self.cached = 0
        self.offered_s = now_s
        self.engine: _Engine | None = None
        self.sent = False
        self.aborted: AbortStage | None = None


class _Engine:
    """An engine's process: its model of time, and the effect in flight."""

    __slots__ = (
        "activated",
        "activated_s",
        "busy_s",
        "cache",
        "devices",
        "limit",
        "model",
        "num_preempted",
        "pending",
        "profile",
    )

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self.model: EngineModel | None = None
        self.devices: tuple[DeviceName, ...] = ()
        self.limit = profile.kv_pool_bytes
        self.pending: Handle | None = None
        self.activated = ("", 0.0)  # kind and seconds of the last start or wake
        self.activated_s = -math.inf
        self.cache = PrefixCache()
        self.busy_s = 0.0  # of processes that are gone; likewise `num_preempted`
        self.num_preempted = 0


class SimNode:
    """Runs one `NodeCore` on the event loop.

    Args:
        devices: budgets, ``host`` included.
        max_num_batched_tokens: of every engine.
        prefix_cache: engines keep what conversations had before.
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
        self.coordinator: SimCoordinator | None = None
        self._loop = loop
        self._network = network
        self._models = models
        self._max_tokens = max_num_batched_tokens
        self._prefix_cache = prefix_cache
        self._record = record
        self._log = log
        self._devices = {device: Device() for device in devices}
        self._engines = {f"{m}@{spec.name}": _Engine(p) for m, p in profiles.items()}
        self._stages: dict[StageId, _Stage] = {}
        self._timers = Timers(loop, lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[NodeEvent] = deque()
        self._handling = False
        self._snapshot_due = False
        self.num_transitions: dict[str, int] = {}

    @property
    def engines(self) -> Mapping[str, EngineModel]:
        """Engine models by engine id, of processes that are up."""
        return {n: e.model for n, e in self._engines.items() if e.model is not None}

    def busy_s(self) -> dict[str, float]:
        """Seconds in which each engine ran iterations."""
        return {
            name: engine.busy_s + (engine.model.busy_s if engine.model is not None else 0.0)
            for name, engine in self._engines.items()
        }

    def num_preempted(self) -> int:
        """Recompute preemptions of all engines."""
        return sum(
            engine.num_preempted + (engine.model.num_preempted if engine.model else 0)
            for engine in self._engines.values()
        )

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

    def connect(self, coordinator: SimCoordinator) -> None:
        """Send the first snapshot, then regular ones."""
        self.coordinator = coordinator
        self._send_snapshot()
        if self._network.snapshot_every_s is not None:
            self._loop.after(self._network.snapshot_every_s, self._tick)
        if self._network.progress_every_s is not None:
            self._loop.after(self._network.progress_every_s, self._tell_progress)

    def offer(self, offer: StageOffered, output_tokens: int, conversation: str) -> None:
        """A stage came from the coordinator.

        Args:
            conversation: whose earlier prompts this one goes on from.
        """
        if offer.stage_id in self._stages:  # its aborted attempt is still leaving the engine
            self._tell(
                StageRefused(offer.stage_id, offer.attempt, "leaving", {}, False, _LEAVING_S)
            )
            return
        self._stages[offer.stage_id] = _Stage(offer, output_tokens, conversation, self._loop.now_s)
        self.post(offer)

    def rebook(self, event: StageRebooked) -> None:
        """A better prediction of a stage came from the coordinator."""
        stage = self._stages.get(event.stage_id)
        if stage is not None and stage.attempt == event.attempt:
            booked = event.booked_tokens
            if stage.engine is not None and stage.engine.model is not None:
                booked = stage.engine.model.rebook(stage.offer.stage_id, booked)
            stage.offer = replace(stage.offer, booked_tokens=booked)
            event = replace(event, booked_tokens=booked)
        self.post(event)

    def withdraw(self, stage_id: StageId) -> None:
        """The coordinator closed the stage's request."""
        stage = self._stages.get(stage_id)
        if stage is None:
            return
        if stage.engine is None:
            del self._stages[stage_id]
            self.post(StageWithdrawn(stage_id))
        elif stage.aborted is None:
            stage.aborted = AbortStage(stage_id, Outcome.CANCELLED, "withdrawn")
            self._abort_on_engine(stage)

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case ForwardStage():
                self._forward(effect)
            case RefuseStage():
                self._refuse(effect)
            case AbortStage():
                self._abort(effect)
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
                self._set_kv_limit(effect)
            case (
                StartEngine()
                | WakeEngine()
                | SleepEngine()
                | SuspendEngine()
                | ResumeEngine()
                | StopEngine()
            ):
                self._begin(effect)
            case AnswerModelAction() | NodeEmptied():
                pass
            case _:
                assert_never(effect)

    def _tell(self, event: NodeMessage) -> None:
        assert self.coordinator is not None
        self._loop.after(self.rtt_s / 2, self.coordinator.post, event)

    # --- snapshots ------------------------------------------------------------------------------

    def _send_snapshot(self) -> None:
        self._snapshot_due = False
        self._tell(NodeSnapshotReceived(self.core.snapshot(self._loop.now_s), self.rtt_s))

    def _tick(self) -> None:
        self._send_snapshot()
        assert self._network.snapshot_every_s is not None
        self._loop.after(self._network.snapshot_every_s, self._tick)

    # --- stages ---------------------------------------------------------------------------------

    def _tell_progress(self) -> None:
        """What live hosts count while answers stream."""
        for engine in self._engines.values():
            if engine.model is None:
                continue
            for name, left in engine.model.tokens_left().items():
                stage = self._stages.get(StageId(name))
                if stage is not None and stage.sent and stage.aborted is None:
                    tokens = stage.output - left
                    self._tell(StageProgressed(stage.offer.stage_id, stage.attempt, tokens))
        assert self._network.progress_every_s is not None
        self._loop.after(self._network.progress_every_s, self._tell_progress)

    def _forward(self, effect: ForwardStage) -> None:
        stage = self._stages[effect.stage_id]
        engine = self._engines[effect.engine_id]
        assert engine.model is not None
        stage.engine = engine
        offer = stage.offer
        if self._prefix_cache:
            room = engine.model.kv_free_tokens
            stage.cached = engine.cache.take(stage.conversation, offer.prompt_tokens, room)
        engine.model.submit(
            Sequence(
                offer.stage_id,
                offer.key,
                offer.prompt_tokens,
                stage.output,
                offer.booked_tokens,
                stage.cached,
            )
        )

    def _refuse(self, effect: RefuseStage) -> None:
        stage = self._stages.pop(effect.stage_id, None)
        if stage is None:
            return
        self._tell(
            StageRefused(
                effect.stage_id,
                stage.attempt,
                effect.reason,
                effect.shortfall_bytes,
                effect.permanent,
                effect.retry_in_s,
            )
        )

    def _abort(self, effect: AbortStage) -> None:
        stage = self._stages.get(effect.stage_id)
        if stage is None or stage.aborted is not None:
            return
        stage.aborted = effect
        self._tell(
            StageEnded(
                effect.stage_id, stage.attempt, effect.outcome, stage.sent, None, effect.reason
            )
        )
        if stage.engine is None:
            del self._stages[effect.stage_id]
        else:
            self._abort_on_engine(stage)

    def _abort_on_engine(self, stage: _Stage) -> None:
        engine = stage.engine
        assert engine is not None
        if engine.model is None:
            self._gone(stage.offer.stage_id)
        else:
            engine.model.abort(stage.offer.stage_id)

    def _first_token(self, name: str) -> None:
        stage = self._stages[StageId(name)]
        stage.sent = True
        self.post(StageSentFirstByte(stage.offer.stage_id))
        if stage.aborted is None:
            self._note_activation(stage)
            self._tell(StageStarted(stage.offer.stage_id, stage.attempt))

    def _note_activation(self, stage: _Stage) -> None:
        engine = stage.engine
        assert engine is not None
        assert self.coordinator is not None
        if engine.activated_s > stage.offered_s:
            kind, seconds = engine.activated
            waited = min(seconds, engine.activated_s - stage.offered_s)
            self.coordinator.activated(stage.offer.stage_id, kind, waited)

    def _finish(self, name: str) -> None:
        stage_id = StageId(name)
        stage = self._stages.pop(stage_id)
        if self._prefix_cache:
            self._keep_prefix(stage)
        self.post(StageLeft(stage_id))
        usage = Usage(stage.offer.prompt_tokens, stage.output, stage.cached)
        self._tell(StageEnded(stage_id, stage.attempt, Outcome.FINISHED, True, usage))

    def _keep_prefix(self, stage: _Stage) -> None:
        engine = stage.engine
        assert engine is not None
        assert engine.model is not None
        tokens = stage.offer.prompt_tokens + stage.output
        engine.cache.keep(stage.conversation, tokens, engine.model.kv_free_tokens)

    def _gone(self, name: str) -> None:
        stage_id = StageId(name)
        self._stages.pop(stage_id, None)
        self.post(StageLeft(stage_id))

    def _outgrow(self, name: str, tokens: int) -> int:
        booked = tokens + _BOOK_AHEAD_TOKENS
        self.post(StageOutgrew(StageId(name), booked))
        return booked

    # --- engines --------------------------------------------------------------------------------

    def _begin(self, effect: EngineEffect) -> None:
        """Begin a transition; a stop supersedes what is under way."""
        kind = type(effect).__name__
        self.num_transitions[kind] = self.num_transitions.get(kind, 0) + 1
        engine = self._engines[effect.engine_id]
        if engine.pending is not None:
            engine.pending.cancel()
        profile = engine.profile
        match effect:
            case StartEngine():
                engine.devices, engine.limit = effect.devices, effect.kv_limit_bytes
                seconds = profile.cold_start_s
            case WakeEngine() | ResumeEngine():
                seconds = profile.wake_s
            case SleepEngine():
                seconds = profile.sleep_s
                engine.cache.clear()
            case SuspendEngine():
                seconds = profile.sleep_s
                engine.cache.clear()
                assert engine.model is not None
                self._loop.after(0.0, engine.model.suspend)
            case StopEngine():
                seconds = STOP_S
                if engine.model is not None:
                    self._remove_model(engine)
            case _:
                assert_never(effect)
        engine.pending = self._loop.after(seconds, self._end, effect, seconds)

    def _end(self, effect: EngineEffect, seconds: float) -> None:
        """A transition is carried out; say what is read back."""
        engine = self._engines[effect.engine_id]
        engine.pending = None
        profile = engine.profile
        device_bytes, host_bytes = profile.awake_bytes + engine.limit, 0
        match effect:
            case StartEngine():
                self._make_model(engine)
                self._note(engine, "start", seconds)
            case WakeEngine():
                self._note(engine, "wake", seconds)
            case ResumeEngine():
                self._note(engine, "resume", seconds)
                assert engine.model is not None
                engine.model.resume()
            case SleepEngine() | SuspendEngine():
                device_bytes, host_bytes = profile.context_bytes, profile.host_asleep_bytes
            case StopEngine():
                device_bytes = 0
            case _:
                assert_never(effect)
        readings = EngineReadings(device_bytes * max(1, len(engine.devices)), host_bytes)
        self.post(
            TransitionFinished(
                effect.engine_id, effect.generation, effect.effect_id, readings, seconds
            )
        )

    def _note(self, engine: _Engine, kind: str, seconds: float) -> None:
        engine.activated = (kind, seconds)
        engine.activated_s = self._loop.now_s

    def _make_model(self, engine: _Engine) -> None:
        profile = engine.profile
        device = engine.devices[0] if engine.devices else next(iter(self._devices))
        engine.model = EngineModel(
            self._loop,
            self._devices[device],
            profile.iteration,
            max_num_seqs=min(profile.max_batch, self._models[profile.model].max_batch),
            max_num_batched_tokens=self._max_tokens,
            kv_tokens=_kv_tokens(profile, engine.limit),
            on_first_token=self._first_token,
            on_finish=self._finish,
            on_gone=self._gone,
            on_outgrow=self._outgrow,
        )

    def _remove_model(self, engine: _Engine) -> None:
        assert engine.model is not None
        engine.model.close()
        engine.busy_s += engine.model.busy_s
        engine.num_preempted += engine.model.num_preempted
        engine.model = None
        engine.cache.clear()
        for stage_id, stage in list(self._stages.items()):
            if stage.engine is engine and stage.aborted is not None:
                del self._stages[stage_id]

    def _set_kv_limit(self, effect: SetKvLimit) -> None:
        engine = self._engines[effect.engine_id]
        engine.limit = effect.kv_limit_bytes
        if engine.model is not None:
            engine.model.set_kv_tokens(_kv_tokens(engine.profile, engine.limit))


def _kv_tokens(profile: ModelProfile, limit_bytes: int) -> float:
    if profile.kv_bytes_per_token <= 0:
        return math.inf
    return limit_bytes // profile.kv_bytes_per_token
