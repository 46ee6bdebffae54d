"""Owns `NodeCore`: gives it events one at a time and carries out its effects.

One task at a time touches an engine (the core orders one transition per device), so an effect on
an engine is a task of its own whose result comes back as an event. A failure of an effect is an
event like any other; an `InvariantViolation` of the core stops the daemon with the core's story.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, assert_never

from maestroctl.domain.engine import EngineReadings
from maestroctl.domain.ids import DeviceName, EngineId, StageId
from maestroctl.domain.messages import ModelActionAnswered
from maestroctl.domain.records import DecisionRecord
from maestroctl.errors import CapabilityMissing, ConfigError, EngineError, ModelSourceError
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.node.engine_set import EngineSet
from maestroctl.live.node.relay import StageRelay
from maestroctl.live.timers import LoopTimers, core_now_s
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
    EngineExited,
    NodeEvent,
    TimerFired,
    TransitionFailed,
    TransitionFinished,
)
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.telemetry.recorder import EventLog, NoLog

_ACTIVATIONS = {StartEngine: "start", WakeEngine: "wake", ResumeEngine: "resume"}

EngineEffect = StartEngine | WakeEngine | SleepEngine | SuspendEngine | ResumeEngine | StopEngine


class NodeListener(Protocol):
    """Who hears what a coordinator wants to know."""

    def snapshot_changed(self) -> None:
        """Send a snapshot soon."""
        ...

    def decided(self, record: DecisionRecord) -> None:
        """A decision of this node."""
        ...

    def answered(self, answer: ModelActionAnswered) -> None:
        """An action asked for by hand is over."""
        ...


class NodeHost:
    """Runs one `NodeCore` on the event loop.

    Args:
        core: its owner is this host.
        engines: builds and keeps the engine adapters.
        listener: hears snapshots, records and answers.
        on_bug: called once with an error that must end the daemon.
        budgets: what models may use on each device at most.
        log: of what the core is told and asks for, closed with the host; None = none is kept.
    """

    def __init__(
        self,
        core: NodeCore,
        engines: EngineSet,
        listener: NodeListener,
        on_bug: Callable[[BaseException], None],
        budgets: Mapping[DeviceName, int],
        log: EventLog | None = None,
    ) -> None:
        self.core = core
        self.budgets = budgets
        self.engines = engines
        self.relay = StageRelay(self)
        self.emptied = asyncio.Event()
        self._listener = listener
        self._on_bug = on_bug
        self._log = log or NoLog()
        self._timers = LoopTimers(lambda timer_id: self.post(TimerFired(timer_id)))
        self._events: deque[NodeEvent] = deque()
        self._handling = False
        self._tasks: set[asyncio.Task[None]] = set()

    # --- events in, effects out -----------------------------------------------------------------

    def post(self, event: NodeEvent) -> None:
        """Handle the event and carry out what follows; events posted meanwhile wait their turn."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for effect in self._handle(self._events.popleft(), core_now_s()):
                    self._carry_out(effect)
        except Exception as exc:
            self._on_bug(exc)
        finally:
            self._handling = False

    def _handle(self, event: NodeEvent, now_s: float) -> list[NodeEffect]:
        try:
            effects = self.core.handle(event, now_s)
        except Exception as exc:
            self._log.append(event, now_s, error=f"{type(exc).__name__}: {exc}")
            self._log.flush()
            raise
        self._log.append(event, now_s, effects)
        return effects

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case ForwardStage() | RefuseStage() | AbortStage():
                self.relay.decide(effect)
            case SetTimer():
                self._timers.set(effect.timer_id, effect.at_s)
            case CancelTimer():
                self._timers.cancel(effect.timer_id)
            case PublishSnapshot():
                self._listener.snapshot_changed()
            case RecordDecision():
                self._listener.decided(effect.record)
            case AnswerModelAction():
                self._listener.answered(
                    ModelActionAnswered(effect.request_id, effect.error, effect.note)
                )
            case SetKvLimit():
                self._spawn(self._set_kv_limit(effect))
            case (
                StartEngine()
                | WakeEngine()
                | SleepEngine()
                | SuspendEngine()
                | ResumeEngine()
                | StopEngine()
            ):
                self._spawn(self._transition(effect))
            case NodeEmptied():
                self.emptied.set()
            case _:
                assert_never(effect)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- engines --------------------------------------------------------------------------------

    async def _transition(self, effect: EngineEffect) -> None:
        """Carry out one change of an engine and report what was read back."""
        began_s = core_now_s()
        try:
            readings = await self._change(effect)
        except (EngineError, ConfigError, ModelSourceError, OSError) as exc:
            self.post(
                TransitionFailed(
                    effect.engine_id,
                    effect.generation,
                    effect.effect_id,
                    reason=describe(exc),
                    alive=self.engines.is_alive(effect.engine_id),
                    permanent=isinstance(exc, (CapabilityMissing, ConfigError, ModelSourceError)),
                )
            )
        except Exception as exc:
            self._on_bug(exc)
        else:
            now_s = core_now_s()
            seconds = now_s - began_s
            if isinstance(effect, (StartEngine, WakeEngine, ResumeEngine)):
                self.engines.activated(effect.engine_id, _ACTIVATIONS[type(effect)], seconds, now_s)
            self.post(
                TransitionFinished(
                    effect.engine_id, effect.generation, effect.effect_id, readings, seconds
                )
            )

    async def _change(self, effect: EngineEffect) -> EngineReadings:
        if isinstance(effect, StartEngine):
            engine = await self.engines.create(effect)
            readings = await engine.start(effect.kv_limit_bytes)
            self.watch(effect.engine_id, effect.generation)
            return readings
        engine = self.engines.get(effect.engine_id)
        match effect:
            case WakeEngine():
                return await engine.wake()
            case SleepEngine():
                return await engine.sleep(effect.tier)
            case SuspendEngine():
                return await engine.suspend()
            case ResumeEngine():
                return await engine.resume()
            case StopEngine():
                await self.engines.stop(effect.engine_id)
                return EngineReadings(device_bytes=0)
            case _:
                assert_never(effect)

    def watch(self, engine_id: EngineId, generation: int) -> None:
        """Post `EngineExited` when the process of this generation ends by itself."""

        def on_exit(exit_text: str) -> None:
            if not self.engines.is_stopping(engine_id):
                self.post(EngineExited(engine_id, generation, exit_text))

        self.engines.watch(engine_id, on_exit)

    async def _set_kv_limit(self, effect: SetKvLimit) -> None:
        if self.engines.is_alive(effect.engine_id):
            await self.engines.get(effect.engine_id).set_kv_limit(effect.kv_limit_bytes)

    # --- what relays need -----------------------------------------------------------------------

    def pool(self, engine_id: EngineId) -> HttpPool:
        """Connections to the engine."""
        return self.engines.pool(engine_id)

    def activation_since(self, engine_id: EngineId, since_s: float) -> tuple[str, float]:
        """What a stage offered at `since_s` waited for."""
        return self.engines.activation_since(engine_id, since_s)

    async def release(self, engine_id: EngineId, stage_id: StageId) -> None:
        """Make sure that the engine works on the stage no more."""
        await self.engines.abort(engine_id, stage_id)

    async def close(self) -> None:
        """Cancel what still runs; engines are left as they are."""
        self._timers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engines.close()
        self._log.close()


def describe(exc: BaseException) -> str:
    """Text and hint of an error."""
    hint = getattr(exc, "hint", None)
    return f"{exc} ({hint})" if hint else str(exc) or type(exc).__name__
