"""Mutable state of one engine and of one stage on a node. One owner: `NodeState`.

An engine exists here for every model the node may run, whatever its status; its process comes and
goes and is counted by `generation`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import exp

from maestroctl.domain.engine import EngineAbilities, EngineStatus, ResidencyTier
from maestroctl.domain.ids import DeviceName, EngineId, ModelName, StageId
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.node.residency import GiveWayAction

ARRIVAL_MEMORY_S = 300.0
"""Stages offered this long ago count 1/e (assumed: some minutes of a user's session)."""
MAX_PASSED_S = 30.0
"""How long stages that came later may go before a held one."""
FORGOTTEN_S = 10 * ARRIVAL_MEMORY_S
"""Nothing offered for so long: a stage counted less than e^-10 and counts nothing from now on."""


class StagePlace(StrEnum):
    """Where a stage is: in exactly one of these."""

    WAITING = "waiting"
    """Held by the node for its engine."""
    RUNNING = "running"
    """Forwarded to the engine."""
    LEAVING = "leaving"
    """Aborted by us; the host has not yet said that its relay is over."""


class OrderCause(StrEnum):
    """Who wants an engine to give way."""

    CLAIM = "claim"
    """Another engine's waiters; called off when they no longer need it."""
    BUDGET = "budget"
    """Booked memory is above a lowered budget; called off when it no longer is."""
    HAND = "hand"
    """A person; carried out whatever others need."""


class EffectKind(StrEnum):
    """Effects on an engine that are answered by `TransitionFinished` or `TransitionFailed`."""

    START = "start"
    WAKE = "wake"
    SLEEP = "sleep"
    SUSPEND = "suspend"
    RESUME = "resume"
    STOP = "stop"


@dataclass(slots=True)
class StageState:
    """A stage the node has taken.

    Attributes:
        kv_bytes: its sequence booking, whole blocks.
        held_since_s: when it was taken.
        order: sequence number of its arrival; breaks ties of `key`.
        protected: its engine was activated for it and is no victim before it has left.
        service_s: predicted seconds in its engine (Eq 2 with the booked output).
        started_s: when it was forwarded.
        passed_s: since when stages that came later have been forwarded before it; None = none was.
    """

    stage_id: StageId
    attempt: int
    engine_id: EngineId
    epoch: int
    service_class: ServiceClass
    key: float
    kv_bytes: int
    held_since_s: float
    order: int
    place: StagePlace = StagePlace.WAITING
    first_byte: bool = False
    protected: bool = False
    service_s: float = 0.0
    started_s: float = 0.0
    passed_s: float | None = None


@dataclass(slots=True)
class PendingEffect:
    """The effect in flight on an engine."""

    effect_id: int
    kind: EffectKind
    tier: ResidencyTier
    locked: bool
    """It holds the transition locks of the engine's devices."""


@dataclass(slots=True)
class GiveWayOrder:
    """An engine is to give way as soon as its stages have left and its devices are free."""

    action: GiveWayAction
    cause: OrderCause
    confirmed: bool = True
    """Still wanted by the reconciliation in hand; only CLAIM and BUDGET orders are ever not."""


@dataclass(frozen=True, slots=True)
class HandRequest:
    """A wake, sleep or evict by hand that is not answered yet.

    Attributes:
        note: what was so already when it came; empty = there was something to do.
    """

    request_id: int
    action: ModelAction
    at_s: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """A coordinator expects a stage for the model at `expected_s`, with this probability."""

    probability: float
    expected_s: float


@dataclass(slots=True)
class EngineState:
    """One engine. Changed by the modules of this package only, through `NodeState`.

    Attributes:
        profile: None for unmanaged engines without one.
        devices: where it runs, or ran last; empty for unmanaged ones.
        kv_limit_bytes: booked KV limit per device; `kv_base_bytes` is what it was started with.
        kv_booked_bytes: sequence bookings of `running`; `kv_waiting_bytes` those of `waiting`.
        running: forwarded stages, LEAVING ones included.
        reading_bytes: last reading per device; the booking never falls below it at rest.
        host_reading_bytes: the same for the host, while asleep at tier HOST.
        num_protected: protected stages in `waiting` and `running`.
        last_effect_id: newest effect id ever issued for this engine.
        doomed: becomes FAILED instead of STOPPED when its process is gone.
        last_good_s: when it last finished a stage well since it was activated.
        prewarm_expected_s: activated on advice for about then; None once it has served.
        prewarm_until_s: gives up an unused prewarm at this time.
        advice: what a coordinator expects of the model; None when nothing, or when it came true.
        arrivals: stages offered, each counted e^(-age / `ARRIVAL_MEMORY_S`), as of `arrivals_at_s`.
        makes_room_for: whose plan its transition in flight is a step of.
        failed_steps: steps of plans for this engine that failed since it last was activated.
        shape: what it could free, remembered by `victim_view`.
    """

    engine_id: EngineId
    model: ModelName
    spec: ModelSpec
    profile: ModelProfile | None
    abilities: EngineAbilities
    max_batch: int
    status: EngineStatus = EngineStatus.STOPPED
    tier: ResidencyTier = ResidencyTier.DISK
    generation: int = 0
    devices: tuple[DeviceName, ...] = ()
    kv_limit_bytes: int = 0
    kv_base_bytes: int = 0
    kv_booked_bytes: int = 0
    kv_waiting_bytes: int = 0
    waiting: dict[StageId, StageState] = field(default_factory=dict)
    running: dict[StageId, StageState] = field(default_factory=dict)
    num_protected: int = 0
    reading_bytes: int = 0
    host_reading_bytes: int = 0
    pending: PendingEffect | None = None
    last_effect_id: int = 0
    give_way: GiveWayOrder | None = None
    requests: list[HandRequest] = field(default_factory=list)
    pinned: bool = False
    since_s: float = 0.0
    idle_since_s: float | None = None
    last_used_s: float = 0.0
    failures: int = 0
    failure: str | None = None
    doomed: bool = False
    not_before_s: float = 0.0
    last_good_s: float | None = None
    stop_failures: int = 0
    stop_retry_s: float = 0.0
    prewarm_expected_s: float | None = None
    prewarm_until_s: float | None = None
    advice: Advice | None = None
    arrivals: float = 0.0
    arrivals_at_s: float = 0.0
    makes_room_for: EngineId | None = None
    failed_steps: int = 0
    shape: object = None
    _block_tokens: int = 1
    _block_bytes: int = 0
    _max_tokens: int = 0

    def __post_init__(self) -> None:
        # Figures of the profile that the hot path needs; no KV is booked on unmanaged engines.
        if self.profile is not None and self.abilities.managed:
            self._block_tokens = self.profile.block_tokens
            self._block_bytes = self.profile.block_tokens * self.profile.kv_bytes_per_token
            self._max_tokens = self.profile.max_model_len

    def kv_bytes(self, num_tokens: int) -> int:
        """Sequence booking of `num_tokens`: whole blocks, at most one sequence of full length.

        The same figure as `estimate_sequence_kv_bytes`, without its calls.
        """
        tokens = num_tokens if num_tokens < self._max_tokens else self._max_tokens
        return -(-tokens // self._block_tokens) * self._block_bytes

    def service_s(self, prompt_tokens: int, booked_tokens: int) -> float:
        """Eq 2 with the booked output at batch 1, seconds; 0 without a profile."""
        if self.profile is None:
            return 0.0
        cost = self.profile.iteration
        output = max(0, min(booked_tokens, self._max_tokens) - prompt_tokens)
        return cost.cp_s * prompt_tokens + (cost.c0_s + cost.c1_s) * output

    def note_arrival(self, now_s: float) -> None:
        """A stage for the model was offered."""
        self.arrivals = self.arrivals * exp((self.arrivals_at_s - now_s) / ARRIVAL_MEMORY_S) + 1.0
        self.arrivals_at_s = now_s

    def arrival_rate(self, now_s: float) -> float:
        """Stages per second lately; falls while none comes."""
        age_s = max(0.0, now_s - self.arrivals_at_s)
        if age_s > FORGOTTEN_S:
            return 0.0
        return self.arrivals * exp(-age_s / ARRIVAL_MEMORY_S) / ARRIVAL_MEMORY_S

    def drain_s(self, now_s: float) -> float:
        """Predicted seconds until the last stage in the engine has left."""
        return max(
            (stage.started_s + stage.service_s - now_s for stage in self.running.values()),
            default=0.0,
        )

    @property
    def kv_capacity_bytes(self) -> int:
        """KV limit, or the one it would be started with; of an elastic one, what it may reach."""
        if self.profile is None:
            return self.kv_limit_bytes
        if not self.status.has_process:
            return self.profile.kv_pool_bytes
        if not self.abilities.elastic_kv:
            return self.kv_limit_bytes
        return max(self.kv_limit_bytes, self.profile.kv_pool_bytes)

    @property
    def num_stages(self) -> int:
        """Stages held and forwarded."""
        return len(self.running) + len(self.waiting)

    @property
    def is_of_interest(self) -> bool:
        """Somebody wants it, is in it, or it is on its way: reconciliation has to look at it."""
        return bool(
            self.waiting
            or self.running
            or self.requests
            or self.pending is not None
            or self.give_way is not None
            or self.advice is not None
            or self.status is EngineStatus.STOPPING
        )

    @property
    def is_stuck(self) -> bool:
        """Its process did not go when told to: its memory may never come back."""
        return self.status is EngineStatus.STOPPING and self.stop_failures > 0

    def give_way_is_final(self) -> bool:
        """A person told it to give way: that comes first."""
        return self.give_way is not None and self.give_way.cause is OrderCause.HAND

    def need_profile(self) -> ModelProfile:
        """The profile of a managed engine, which always has one."""
        assert self.profile is not None, self.engine_id
        return self.profile

    def waiters_in_order(self, now_s: float) -> list[StageState]:
        """Held stages, lowest key first, then by arrival.

        One that others have overtaken for `MAX_PASSED_S` goes before all that came after it, or a
        large one could wait for ever where small ones keep fitting.
        """

        def place(stage: StageState) -> tuple[bool, float, int]:
            is_due = stage.passed_s is not None and now_s - stage.passed_s >= MAX_PASSED_S
            return (not is_due, 0.0 if is_due else stage.key, stage.order)

        return sorted(self.waiting.values(), key=place)

    def note_passed(self, stage: StageState, now_s: float) -> None:
        """`stage` goes into the engine before those held that came earlier."""
        for held in self.waiting.values():
            if held.order < stage.order and held.passed_s is None:
                held.passed_s = now_s

    def wanted_since_s(self) -> float | None:
        """Since when somebody waits for the engine: a held stage, or a wake by hand."""
        if not self.waiting and not self.requests:
            return None
        times = [stage.held_since_s for stage in self.waiting.values()]
        times += [r.at_s for r in self.requests if r.action is ModelAction.WAKE]
        return min(times, default=None)
