"""All tables of a node core, and the effects of the event in hand.

Owner of every `EngineState` and `StageState`. The other modules of this package are functions
over a `NodeState`; what they share is here: effects, timers, moves through the life cycle, the
locks of devices.

Three flags carry work to the end of an event: `dirty` (something changed that could let a waiter
go on: `reconcile` runs), `changed` (a coordinator would like to know: one `PublishSnapshot`), and
`contended` (somebody waits for memory, so even an engine going idle is news).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import HOST_DEVICE, DeviceName, EngineId, ModelName, StageId, TimerId
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.records import Candidate, DecisionRecord
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.effects import CancelTimer, NodeEffect, RecordDecision, SetTimer
from maestroctl.scheduler.events import PrewarmAdvised
from maestroctl.scheduler.node.books import MemoryBooks
from maestroctl.scheduler.node.degradation import DegradationPolicy
from maestroctl.scheduler.node.engine_lifecycle import is_allowed
from maestroctl.scheduler.node.engine_state import (
    EffectKind,
    EngineState,
    PendingEffect,
    StageState,
)
from maestroctl.scheduler.node.footprint import estimate_footprint
from maestroctl.scheduler.node.journal import Journal
from maestroctl.scheduler.node.residency import ResidencyPolicy

_SERVING = (EngineStatus.IDLE, EngineStatus.ACTIVE)


class ShutdownMode(StrEnum):
    """How the node is going down."""

    DRAIN = "drain"
    NOW = "now"


@dataclass(slots=True)
class NodeStats:
    """Counters since the start; for metrics and tests, never for decisions."""

    offered: int = 0
    forwarded: int = 0
    held: int = 0
    refused: int = 0
    aborted: int = 0
    withdrawn: int = 0
    left: int = 0
    stale: int = 0
    starts: int = 0
    wakes: int = 0
    sleeps: int = 0
    suspends: int = 0
    resumes: int = 0
    stops: int = 0
    failures: int = 0
    outgrown: int = 0
    rebooked: int = 0


@dataclass(slots=True)
class NodeState:
    """Tables of one node.

    Attributes:
        never_fits: models that cannot run here, with the reason.
        locks: device -> engine whose transition is in flight on it.
        timers: timers asked for and not yet fired.
        next_effect_id: strictly rising over the life of the core.
        arrivals: counts stages taken; breaks ties.
        overrun_since_s: since when some device's bookings are above its budget; None = they are
            not.
        curve: the degradation curve, and the tables and time it was made of.
    """

    node: NodeSpec
    policy: PolicySpec
    books: MemoryBooks
    residency: ResidencyPolicy
    degradation: DegradationPolicy
    engines: dict[EngineId, EngineState]
    by_model: dict[ModelName, EngineState]
    never_fits: dict[ModelName, str]
    stages: dict[StageId, StageState] = field(default_factory=dict)
    locks: dict[DeviceName, EngineId] = field(default_factory=dict)
    timers: dict[TimerId, float] = field(default_factory=dict)
    epoch: int = 0
    applied_seq: int = 0
    early_advice: dict[ModelName, PrewarmAdvised] = field(default_factory=dict)
    next_effect_id: int = 1
    arrivals: int = 0
    shutdown: ShutdownMode | None = None
    emptied: bool = False
    overrun_since_s: float | None = None
    curve: tuple[object, float, tuple[tuple[int, float], ...]] | None = None
    contended: bool = False
    stats: NodeStats = field(default_factory=NodeStats)
    journal: Journal = field(default_factory=Journal)
    now_s: float = 0.0
    effects: list[NodeEffect] = field(default_factory=list)
    dirty: bool = False
    changed: bool = False

    # --- devices ------------------------------------------------------------------------------

    def compute_devices(self) -> tuple[DeviceName, ...]:
        """Devices that run engines, in the order they were declared."""
        return tuple(device for device in self.books.budgets if device != HOST_DEVICE)

    def is_open(self, engine: EngineState) -> bool:
        """May stages be forwarded to the engine now (slots apart)?

        An overrun of one of its devices closes it: a lowered budget stops admissions.
        """
        if engine.status not in _SERVING or engine.give_way is not None:
            return False
        overrun = self.books.overrun
        return not overrun or not any(device in overrun for device in engine.devices)

    def is_locked(self, engine: EngineState) -> bool:
        """Is another engine changing memory on one of this engine's devices?"""
        own = engine.engine_id
        return any(self.locks.get(device, own) != own for device in engine.devices)

    # --- effects in flight ----------------------------------------------------------------------

    def issue(
        self, engine: EngineState, kind: EffectKind, tier: ResidencyTier, *, lock: bool = True
    ) -> int:
        """Note an effect in flight on `engine`, replacing an older one; returns its id."""
        self.unlock(engine)
        effect_id = self.next_effect_id
        self.next_effect_id += 1
        engine.last_effect_id = effect_id
        engine.pending = PendingEffect(effect_id, kind, tier, lock)
        if lock:
            for device in engine.devices:
                self.locks[device] = engine.engine_id
        return effect_id

    def unlock(self, engine: EngineState) -> None:
        """The engine's effect is no longer in flight."""
        if engine.pending is not None and engine.pending.locked:
            for device in engine.devices:
                if self.locks.get(device) == engine.engine_id:
                    del self.locks[device]
        engine.pending = None

    # --- life cycle and books -----------------------------------------------------------------

    def move(self, engine: EngineState, status: EngineStatus, why: str) -> None:
        """Take `engine` to `status`.

        Raises:
            InvariantViolation: the life cycle does not allow it.
        """
        if not is_allowed(engine.status, status):
            raise self.violation(f"{engine.engine_id}: {engine.status} -> {status} ({why})", engine)
        self.journal.note(self.now_s, engine.engine_id, None, f"{status}: {why}")
        self.changed = True
        engine.status = status
        engine.since_s = self.now_s

    def flip(self, engine: EngineState, status: EngineStatus) -> None:
        """Take an awake engine from IDLE to ACTIVE or back: no news to anybody.

        Part of the hot path; the story of its stages tells the same.
        """
        engine.status = status
        engine.since_s = self.now_s

    def footprint(
        self,
        engine: EngineState,
        status: EngineStatus | None = None,
        tier: ResidencyTier | None = None,
    ) -> dict[DeviceName, int]:
        """What the engine holds in `status` (its own when None), readings included."""
        if not engine.abilities.managed:
            return {}
        return estimate_footprint(
            engine.need_profile(),
            status or engine.status,
            tier or engine.tier,
            engine.devices,
            engine.kv_limit_bytes,
            engine.reading_bytes,
            engine.host_reading_bytes,
        )

    def follow(self, engine: EngineState, wanted: Mapping[DeviceName, int]) -> None:
        """Let the engine's booking follow what was read."""
        if dict(wanted) != self.books.holding(engine.engine_id):
            self.books.follow(engine.engine_id, wanted)
            self.changed = True
            self.dirty = True

    # --- timers, records, errors --------------------------------------------------------------

    def want_timer(self, kind: str, engine: EngineState, at_s: float) -> None:
        """Have ``kind:engine`` fire at `at_s`; nothing is sent when it is set so already."""
        timer_id = TimerId(f"{kind}:{engine.engine_id}")
        if self.timers.get(timer_id) != at_s:
            self.timers[timer_id] = at_s
            self.effects.append(SetTimer(timer_id, at_s))

    def drop_timer(self, timer_id: TimerId) -> None:
        """Forget the timer, if it is set."""
        if self.timers.pop(timer_id, None) is not None:
            self.effects.append(CancelTimer(timer_id))

    def record(
        self,
        kind: str,
        subject: str,
        choice: str,
        reason: str,
        candidates: tuple[Candidate, ...] = (),
    ) -> None:
        """Emit a decision record."""
        record = DecisionRecord(self.now_s, kind, subject, choice, reason, candidates[:16])
        self.effects.append(RecordDecision(record))

    def stale(self) -> None:
        """Count an event that is too old to matter; it changes nothing else."""
        self.stats.stale += 1

    def violation(
        self, message: str, engine: EngineState | None = None, stage_id: StageId | None = None
    ) -> InvariantViolation:
        """An error with the story of its subject, to be raised."""
        subject = stage_id or (engine.engine_id if engine else None)
        story = self.journal.story(subject) if subject else ()
        return InvariantViolation(message, story=story)
