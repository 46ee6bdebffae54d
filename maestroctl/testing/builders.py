"""Small worlds for tests of the node core: sizes in GiB, one token of KV = 1 MiB.

`NodeScript` drives a `NodeCore` by hand: it hands in events at a time it keeps, answers effects
when told to, and checks every invariant after each event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from maestroctl.domain.engine import EngineAbilities, EngineReadings, EngineStatus
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import (
    HOST_DEVICE,
    DeviceName,
    EngineId,
    ModelName,
    NodeName,
    StageId,
    TimerId,
)
from maestroctl.domain.llm import IterationCost, ModelProfile, ModelSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.snapshot import EngineSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import GIB, MIB
from maestroctl.scheduler.effects import (
    NodeEffect,
    PublishSnapshot,
    RecordDecision,
    ResumeEngine,
    SetTimer,
    SleepEngine,
    StartEngine,
    StopEngine,
    SuspendEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import (
    ModelActionRequested,
    NodeEvent,
    StageLeft,
    StageOffered,
    TimerFired,
    TransitionFailed,
    TransitionFinished,
)
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.testing.plain_policy import PLAIN

CPU = DeviceName("cpu")
NODE = NodeName("n")

SLEEPER = EngineAbilities(can_sleep_disk=True, can_suspend=True)
HOST_SLEEPER = EngineAbilities(can_sleep_host=True, can_suspend=True)
STARTER = EngineAbilities()
ENDPOINT = EngineAbilities(managed=False)
ELASTIC = EngineAbilities(can_sleep_disk=True, elastic_kv=True)
ALL_ABLE = EngineAbilities(
    can_sleep_host=True, can_sleep_disk=True, can_suspend=True, elastic_kv=True
)

EngineEffect = StartEngine | WakeEngine | SleepEngine | SuspendEngine | ResumeEngine | StopEngine
ENGINE_EFFECTS = (
    StartEngine,
    WakeEngine,
    SleepEngine,
    SuspendEngine,
    ResumeEngine,
    StopEngine,
)


def make_node_profile(model: str, **changes: Any) -> ModelProfile:
    """A profile that needs 8 GiB to start, 7 awake (2 of them KV, 1 at least), 1 asleep.

    Host memory asleep at tier HOST: 4 GiB. Cold start 30 s, wake 2 s, sleep 0.5 s.
    """
    fields: dict[str, Any] = {
        "model": ModelName(model),
        "weights_bytes": 3 * GIB,
        "context_bytes": 1 * GIB,
        "peak_bytes": 1 * GIB,
        "start_peak_bytes": 1 * GIB,
        "host_asleep_bytes": 4 * GIB,
        "kv_bytes_per_token": MIB,
        "kv_pool_bytes": 2 * GIB,
        "kv_least_bytes": 1 * GIB,
        "block_tokens": 16,
        "max_model_len": 1024,
        "max_batch": 4,
        "cold_start_s": 30.0,
        "wake_s": 2.0,
        "sleep_s": 0.5,
        "iteration": IterationCost(0.02, 0.001, 0.0, 0.001),
    }
    return ModelProfile(**(fields | changes))


def make_node_core(
    models: Sequence[str] = ("a", "b", "c"),
    *,
    budget: int = 10 * GIB,
    host: int = 16 * GIB,
    devices: Mapping[str, int] | None = None,
    abilities: EngineAbilities | Mapping[str, EngineAbilities] = SLEEPER,
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
    specs: Mapping[str, Mapping[str, Any]] | None = None,
    policy: PolicySpec | None = None,
    **seams: Any,
) -> NodeCore:
    """A node with these models, all alike except for the fields named in `profiles`, `specs`.

    With the default budget of 10 GiB one engine is awake (7), two more asleep (1 each).
    """
    if not isinstance(abilities, EngineAbilities):
        able = {ModelName(m): abilities.get(m, SLEEPER) for m in models}
    else:
        able = {ModelName(m): abilities for m in models}
    sizes: Mapping[str, int] = devices or {CPU: budget}
    budgets = {DeviceName(d): n for d, n in sizes.items()}
    return NodeCore(
        NodeSpec(NODE),
        policy or PLAIN,
        budgets | {HOST_DEVICE: host},
        {ModelName(m): make_node_profile(m, **(profiles or {}).get(m, {})) for m in models},
        {
            ModelName(m): ModelSpec(ModelName(m), **{"max_batch": 4, **(specs or {}).get(m, {})})
            for m in models
        },
        able,
        **seams,
    )


def make_offer(
    stage: str,
    model: str,
    *,
    tokens: int = 100,
    prompt: int = 50,
    epoch: int = 0,
    seq: int = 0,
    key: float = 0.0,
    attempt: int = 1,
    service_class: ServiceClass = ServiceClass.INTERACTIVE,
) -> StageOffered:
    """An offer; `tokens` are booked, prompt included."""
    return StageOffered(
        StageId(stage),
        attempt,
        ModelName(model),
        epoch,
        seq,
        min(prompt, tokens),
        tokens,
        service_class,
        key,
    )


def engine_of(model: str) -> EngineId:
    """Id of the engine of `model` on the test node."""
    return EngineId(f"{model}@{NODE}")


def without_news(effects: Iterable[NodeEffect]) -> list[NodeEffect]:
    """Effects that are neither records nor snapshots."""
    return [e for e in effects if not isinstance(e, RecordDecision | PublishSnapshot)]


class NodeScript:
    """Drives a core by hand. `now_s` moves by `wait` only; effects come without news.

    Attributes:
        effects: everything since the start, news included.
        open: engine effects that were not answered yet, oldest first.
    """

    def __init__(self, core: NodeCore | None = None, **options: Any) -> None:
        self.core = core or make_node_core(**options)
        self.now_s = 0.0
        self.effects: list[NodeEffect] = []
        self.open: list[EngineEffect] = []
        self.timers: dict[TimerId, float] = {}

    def do(self, event: NodeEvent) -> list[NodeEffect]:
        """Hand in an event, check the core, return the effects without news."""
        effects = self.core.handle(event, self.now_s)
        self.core.validate()
        self.effects += effects
        for effect in effects:
            if isinstance(effect, ENGINE_EFFECTS):
                self.open = [e for e in self.open if e.engine_id != effect.engine_id]
                self.open.append(effect)
            elif isinstance(effect, SetTimer):
                self.timers[effect.timer_id] = effect.at_s
        return without_news(effects)

    def wait(self, seconds: float) -> None:
        """Let time pass without firing timers."""
        self.now_s += seconds

    def offer(self, stage: str, model: str, **fields: Any) -> list[NodeEffect]:
        """Offer a stage."""
        return self.do(make_offer(stage, model, **fields))

    def leave(self, stage: str) -> list[NodeEffect]:
        """The relay of a stage is over."""
        return self.do(StageLeft(StageId(stage)))

    def ask(self, request_id: int, action: ModelAction, model: str) -> list[NodeEffect]:
        """Ask by hand."""
        return self.do(ModelActionRequested(request_id, action, ModelName(model)))

    def fire(self, timer: str) -> list[NodeEffect]:
        """Let a timer fire at its time."""
        timer_id = TimerId(timer)
        self.now_s = max(self.now_s, self.timers.pop(timer_id))
        return self.do(TimerFired(timer_id))

    def effect_on(self, model: str) -> EngineEffect:
        """The effect in flight on the engine of `model`."""
        (effect,) = [e for e in self.open if e.engine_id == engine_of(model)]
        return effect

    def finish(self, model: str, *, seconds: float = 0.0, device: int = 0) -> list[NodeEffect]:
        """Answer the open effect of a model well, reading `device` bytes."""
        effect = self.effect_on(model)
        self.open.remove(effect)
        self.wait(seconds)
        return self.do(
            TransitionFinished(
                effect.engine_id,
                effect.generation,
                effect.effect_id,
                EngineReadings(device),
                seconds,
            )
        )

    def fail(
        self, model: str, reason: str = "boom", *, alive: bool = False, permanent: bool = False
    ) -> list[NodeEffect]:
        """Answer the open effect of a model with a failure."""
        effect = self.effect_on(model)
        self.open.remove(effect)
        return self.do(
            TransitionFailed(
                effect.engine_id, effect.generation, effect.effect_id, reason, alive, permanent
            )
        )

    def engine(self, model: str) -> EngineSnapshot:
        """The engine of a model as the snapshot tells it."""
        (found,) = [
            e for e in self.core.snapshot(self.now_s).engines if e.engine_id == engine_of(model)
        ]
        return found

    def status(self, model: str) -> EngineStatus:
        """Status of the engine of a model."""
        return self.engine(model).status

    def booked(self, device: str = CPU) -> int:
        """Booked bytes of a device."""
        (found,) = [d for d in self.core.snapshot(self.now_s).devices if d.device == device]
        return found.booked_bytes

    def awake(self, *models: str) -> NodeScript:
        """Start these models one after the other and leave them idle; returns itself."""
        for model in models:
            self.offer(f"warm-{model}", model)
            self.finish(model)
            self.leave(f"warm-{model}")
        return self

    def asleep(self, *models: str) -> NodeScript:
        """Start these models and put them to sleep by hand; returns itself."""
        for number, model in enumerate(models):
            self.awake(model)
            self.ask(-1 - number, ModelAction.SLEEP, model)
            self.finish(model)
        return self
