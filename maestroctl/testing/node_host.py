"""A node host without a node: answers the effects of a `NodeCore` when it is told to, and checks.

`FakeNodeHost` keeps the truth that a real host has (which effect is in flight, which relay is
open, what each process holds) and compares it with what the core asks for:

* Eq 4: no event but a reading takes booked memory further above a budget, and what processes
  really hold is never more than what is booked for them;
* one transition per device at a time;
* each stage ends once, is forwarded at most once, and only to an engine that is awake;
* each request by hand is answered once; the node says once that it is empty.

It has no strategy of its own: a test, or `drive_randomly`, decides what happens next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

from maestroctl.domain.engine import EngineReadings, EngineStatus
from maestroctl.domain.ids import DeviceName, EngineId, ModelName, StageId, TimerId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.effects import (
    AbortStage,
    AnswerModelAction,
    CancelTimer,
    ForwardStage,
    NodeEffect,
    NodeEmptied,
    RefuseStage,
    SetTimer,
    StartEngine,
    StopEngine,
)
from maestroctl.scheduler.events import (
    EngineAdopted,
    EngineExited,
    EpochAnnounced,
    MemoryRead,
    ModelActionRequested,
    NodeEvent,
    PrewarmAdvised,
    ShutdownRequested,
    StageLeft,
    StageOutgrew,
    StageRebooked,
    StageSentFirstByte,
    StageWithdrawn,
    TimerFired,
    TransitionFailed,
    TransitionFinished,
)
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.testing.builders import ENGINE_EFFECTS, EngineEffect, make_offer

READINGS = (MemoryRead, EngineAdopted, TransitionFinished)
_SCRATCH = {"shape", "stats", "effects", "now_s", "journal"}


def dump(value: Any) -> Any:
    """Plain copy of a core's tables for comparison; counters and the journal are left out."""
    if isinstance(value, NodeCore):
        return dump(value._state)
    if isinstance(value, Enum) or value is None or isinstance(value, str | int | float):
        return value
    if is_dataclass(value):
        names = [f.name for f in fields(value) if f.name not in _SCRATCH]
        return {name: dump(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return [(dump(key), dump(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [dump(item) for item in value]
    if hasattr(value, "__dict__"):
        return {name: dump(item) for name, item in vars(value).items()}
    raise TypeError(f"cannot dump {type(value)}")


@dataclass
class FakeNodeHost:
    """See the module. Every event goes through `send`.

    Attributes:
        live: stages offered and not ended; True once forwarded.
        leaving: aborted stages whose relay is still open.
        in_flight: unanswered effect per engine.
        answered: effects answered already, to be sent again as stale ones.
        alive: generation of each process that is up.
        requests: requests by hand not answered yet.
        down: the node was told to go down.
        nominal_budgets: what the node began with.
    """

    core: NodeCore
    now_s: float = 0.0
    live: dict[StageId, bool] = field(default_factory=dict)
    leaving: list[StageId] = field(default_factory=list)
    in_flight: dict[EngineId, EngineEffect] = field(default_factory=dict)
    answered: list[EngineEffect] = field(default_factory=list)
    alive: dict[EngineId, int] = field(default_factory=dict)
    requests: list[int] = field(default_factory=list)
    timers: dict[TimerId, float] = field(default_factory=dict)
    outcomes: dict[StageId, str] = field(default_factory=dict)
    emptied: bool = False
    down: bool = False
    log: list[str] = field(default_factory=list)
    num_stages: int = 0
    num_requests: int = 0
    epoch: int = 0
    seq: int = 0

    def __post_init__(self) -> None:
        self.nominal_budgets = dict(self.core._state.books.budgets)

    # --- events in, effects out -----------------------------------------------------------------

    def send(self, event: NodeEvent) -> list[NodeEffect]:
        """Hand in one event and check whatever comes back."""
        before = self._overruns()
        effects = self.core.handle(event, self.now_s)
        self._write_log(event, effects)
        for effect in effects:
            self._carry_out(effect)
        self.core.validate()
        if not isinstance(event, READINGS):
            for device, excess in self._overruns().items():
                assert excess <= before.get(device, 0), f"Eq 4 broken on {device} by {event}"
        self._check_memory()
        self._check_one_per_device()
        return effects

    def _write_log(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        self.log.append(f"{self.now_s:.3f} {event!r}")
        self.log += [f"    {effect!r}" for effect in effects]

    def _overruns(self) -> dict[DeviceName, int]:
        return dict(self.core._state.books.overrun)

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case ForwardStage():
                assert self.live.get(effect.stage_id) is False, f"forwarded twice: {effect}"
                assert self.alive.get(effect.engine_id, 1) == effect.generation
                assert effect.engine_id not in self.in_flight, "forwarded into a transition"
                self.live[effect.stage_id] = True
            case RefuseStage():
                assert self.live.pop(effect.stage_id) is False, f"refused after start: {effect}"
                self._end(effect.stage_id, "refused")
            case AbortStage():
                if self.live.pop(effect.stage_id):
                    self.leaving.append(effect.stage_id)
                self._end(effect.stage_id, "aborted")
            case AnswerModelAction():
                self.requests.remove(effect.request_id)
            case SetTimer():
                self.timers[effect.timer_id] = effect.at_s
            case CancelTimer():
                del self.timers[effect.timer_id]
            case NodeEmptied():
                assert not self.emptied
                assert not self.live
                self.emptied = True
            case _ if isinstance(effect, ENGINE_EFFECTS):
                self._begin(effect)

    def _begin(self, effect: EngineEffect) -> None:
        engine_id = effect.engine_id
        if engine_id in self.in_flight:
            assert isinstance(effect, StopEngine), "only a stop supersedes another effect"
            self.answered.append(self.in_flight[engine_id])
        if isinstance(effect, StartEngine):
            assert engine_id not in self.alive, "two processes for one engine"
            self.alive[engine_id] = effect.generation
        self.in_flight[engine_id] = effect

    def _end(self, stage_id: StageId, how: str) -> None:
        assert stage_id not in self.outcomes, f"{stage_id} ended twice: {how}"
        self.outcomes[stage_id] = how

    def _check_memory(self) -> None:
        """What processes may really hold is covered by the books."""
        state = self.core._state
        for engine_id, effect in self.in_flight.items():
            engine = state.engines[engine_id]
            if isinstance(effect, StopEngine) or engine.status is EngineStatus.STOPPING:
                continue
            profile = engine.need_profile()
            awake = profile.awake_bytes + engine.kv_limit_bytes
            for device in engine.devices:
                assert state.books.holding(engine_id).get(device, 0) >= awake

    def _check_one_per_device(self) -> None:
        if self.core._state.shutdown is not None:
            return
        seen: list[DeviceName] = []
        for engine_id in self.in_flight:
            seen += self.core._state.engines[engine_id].devices
        assert len(seen) == len(set(seen)), f"two transitions on one device: {self.in_flight}"

    # --- what can happen ------------------------------------------------------------------------

    def offer(self, model: str, **options: Any) -> StageId:
        """A stage comes."""
        self.num_stages += 1
        self.seq += 1
        stage_id = StageId(f"s{self.num_stages}")
        self.live[stage_id] = False
        event = make_offer(stage_id, model, **({"epoch": self.epoch, "seq": self.seq} | options))
        self.send(event)
        return stage_id

    def leave(self, stage_id: StageId) -> None:
        """A relay ends: of a forwarded stage, or of an aborted one."""
        if stage_id in self.leaving:
            self.leaving.remove(stage_id)
        else:
            assert self.live.pop(stage_id)
            self._end(stage_id, "left")
        self.send(StageLeft(stage_id))

    def rebook(self, stage_id: StageId, tokens: int, *, attempt: int = 1) -> list[NodeEffect]:
        """A better prediction comes; whatever it says, it ends nothing."""
        self.seq += 1
        serving = self.forwarded()
        event = StageRebooked(stage_id, attempt, self.epoch, self.seq, min(1, tokens), tokens)
        effects = self.send(event)
        assert not any(isinstance(effect, AbortStage | RefuseStage) for effect in effects)
        assert set(serving) <= set(self.forwarded())
        return effects

    def withdraw(self, stage_id: StageId) -> None:
        """The coordinator takes a stage back."""
        del self.live[stage_id]
        self._end(stage_id, "withdrawn")
        self.send(StageWithdrawn(stage_id))

    def finish(self, engine_id: EngineId, device_bytes: int = 0, host_bytes: int = 0) -> None:
        """An effect is carried out and verified."""
        effect = self._answer(engine_id)
        if isinstance(effect, StopEngine):
            self._process_gone(engine_id)
        readings = EngineReadings(device_bytes, host_bytes)
        self.send(TransitionFinished(engine_id, effect.generation, effect.effect_id, readings, 0.1))

    def fail(self, engine_id: EngineId, *, alive: bool, permanent: bool = False) -> None:
        """An effect did not do what it should."""
        effect = self._answer(engine_id)
        if not alive:
            self._process_gone(engine_id)
        self.send(
            TransitionFailed(
                engine_id, effect.generation, effect.effect_id, "boom", alive, permanent
            )
        )

    def _answer(self, engine_id: EngineId) -> EngineEffect:
        effect = self.in_flight.pop(engine_id)
        self.answered.append(effect)
        del self.answered[:-20]
        return effect

    def _process_gone(self, engine_id: EngineId) -> None:
        self.alive.pop(engine_id, None)

    def exit(self, engine_id: EngineId) -> None:
        """A process dies by itself; a `StopEngine` will find it gone."""
        generation = self.alive[engine_id]
        if not isinstance(self.in_flight.get(engine_id), StopEngine):
            self.in_flight.pop(engine_id, None)
        self.send(EngineExited(engine_id, generation, "killed"))

    def ask(self, action: ModelAction, model: str) -> None:
        """Somebody asks by hand."""
        self.num_requests += 1
        self.requests.append(self.num_requests)
        self.send(ModelActionRequested(self.num_requests, action, ModelName(model)))

    def advance(self, seconds: float) -> None:
        """Time passes; timers fire when due."""
        until_s = self.now_s + seconds
        for _ in range(1000):
            due = [(at_s, timer_id) for timer_id, at_s in self.timers.items() if at_s <= until_s]
            if not due:
                break
            at_s, timer_id = min(due)
            self.now_s = max(self.now_s, at_s)
            del self.timers[timer_id]
            self.send(TimerFired(timer_id))
        else:
            raise AssertionError(f"timers do not come to rest: {self.timers}")
        self.now_s = until_s

    def forwarded(self) -> list[StageId]:
        """Stages with an open relay."""
        return [stage_id for stage_id, started in self.live.items() if started]

    def settle(self, max_rounds: int = 400) -> None:
        """From here everything goes well: nobody may be left waiting.

        Raises:
            AssertionError: something waits for ever.
        """
        for _ in range(max_rounds):
            down = self.emptied or not self.down
            if down and not self.live and not self.requests and not self.in_flight:
                return
            for stage_id in [*self.leaving, *self.forwarded()]:
                if stage_id in self.leaving or self.live.get(stage_id):
                    self.leave(stage_id)
            for engine_id in list(self.in_flight):
                if engine_id in self.in_flight:
                    self.finish(engine_id)
            self.advance(1.0)
        raise AssertionError(
            f"waits for ever: stages {self.live}, requests {self.requests}, {self.in_flight}\n"
            + "\n".join(self.log[-60:])
        )


def drive_randomly(
    host: FakeNodeHost, seed: int, num_events: int, *, faults: bool = True, calm: int = 1
) -> Iterator[str]:
    """Let `num_events` random things happen; yields what it did.

    With `faults`, effects fail, engines die, budgets fall, coordinators change and people meddle;
    the higher `calm`, the less of that.
    """
    rng = random.Random(seed)
    models = [str(model) for model in host.core._state.by_model]
    everyday = ["offer"] * 5 + ["leave"] * 5 + ["finish"] * 4 + ["advance"] * 2
    everyday += ["withdraw", "grow", "rebook"]
    trouble = ["fail", "exit", "budget", "read", "ask", "ask", "prewarm", "epoch", "stale"]
    for _ in range(num_events):
        action = rng.choice(everyday * calm + trouble if faults else everyday)
        _do(host, rng, action, models)
        yield action


def _do(host: FakeNodeHost, rng: random.Random, action: str, models: list[str]) -> None:
    running = [*host.forwarded(), *host.leaving]
    moving = list(host.in_flight)
    if action == "offer":
        host.offer(
            models[int(len(models) * rng.random() ** 2)],  # the first ones are asked for most
            tokens=rng.choice([1, 100, 400, 1024, 5000]),
            key=rng.choice([0.0, 1.0]),
            service_class=rng.choice(list(ServiceClass)),
        )
    elif action == "leave" and running:
        host.leave(rng.choice(running))
    elif action == "withdraw" and host.live:
        host.withdraw(rng.choice(list(host.live)))
    elif action == "grow" and running:
        stage_id = rng.choice(running)
        grown: list[NodeEvent] = [
            StageOutgrew(stage_id, rng.choice([300, 900])),
            StageSentFirstByte(stage_id),
        ]
        host.send(rng.choice(grown))
    elif action == "rebook":
        known = [*host.live, *host.leaving, StageId("unknown")]
        tokens = rng.choice([0, 1, 100, 400, 1024, 5000])
        host.rebook(rng.choice(known), tokens, attempt=rng.choice([1, 1, 1, 2]))
    elif action == "finish" and moving:
        host.finish(rng.choice(moving), rng.choice([0, 0, 1 << 30, 9 << 30]))
    elif action == "fail" and moving:
        host.fail(rng.choice(moving), alive=rng.random() < 0.6, permanent=rng.random() < 0.1)
    elif action == "exit" and host.alive:
        host.exit(rng.choice(list(host.alive)))
    elif action == "advance":
        host.advance(rng.choice([0.1, 1.0, 5.0, 40.0]))
    else:
        _do_rare(host, rng, action, models)


def _do_rare(host: FakeNodeHost, rng: random.Random, action: str, models: list[str]) -> None:
    budgets = host.nominal_budgets
    if action == "budget":
        device = rng.choice(list(budgets))
        size = int(budgets[device] * rng.choice([0.1, 0.6, 0.9, 1.0, 1.0]))
        host.send(MemoryRead({device: size}))
    elif action == "read" and host.alive:
        engine_id = rng.choice(list(host.alive))
        host.send(MemoryRead({}, {engine_id: rng.choice([0, 5 << 30, 8 << 30])}))
    elif action == "ask":
        host.ask(rng.choice(list(ModelAction)), rng.choice(models))
    elif action == "prewarm":
        model, seq = ModelName(rng.choice(models)), host.seq + rng.randrange(2)
        host.send(PrewarmAdvised(model, 0.9, host.now_s + 3, host.epoch, seq))
    elif action == "epoch" and rng.random() < 0.3:
        host.epoch, host.seq = host.epoch + 1, 0
        host.send(EpochAnnounced(host.epoch))
    elif action == "stale" and host.answered:
        old = rng.choice(host.answered)
        if host.in_flight.get(old.engine_id) is not old:
            before, stale = dump(host.core), host.core.stats.stale
            event = TransitionFinished(
                old.engine_id, old.generation, old.effect_id, EngineReadings(0)
            )
            assert host.send(event) == []
            assert dump(host.core) == before
            assert host.core.stats.stale == stale + 1


def restore_budgets(host: FakeNodeHost) -> None:
    """Give the node back what it began with."""
    host.send(MemoryRead(dict(host.nominal_budgets)))


def shut_down(host: FakeNodeHost, *, drain: bool) -> None:
    """Ask the node to go down."""
    host.down = True
    host.send(ShutdownRequested(drain))
