"""What the coordinator believes of one model on one node, and of one node; dated, never certain."""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import HOST_DEVICE, DeviceName, ModelName, NodeName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.memory_need import estimate_awake_bytes, estimate_starting_bytes
from maestroctl.scheduler.routing.degradation_cost import estimate_degradation_s

COMING = (EngineStatus.STARTING, EngineStatus.WAKING, EngineStatus.RESUMING)
_KEEPS_CONTEXT = (EngineStatus.SLEEPING, EngineStatus.SUSPENDED, EngineStatus.FALLING_ASLEEP)


class Place:
    """One model on one node.

    Attributes:
        profile: None for an engine that somebody else runs.
        devices: where its engines run, or would; empty where that is open or not the node's.
        slots: stages it takes at once; `reserved` of them are closed to batch stages.
        capacity: of the slots, those that are served at once; the others wait at the engine.
        num_batch: batch stages of ours there.
        in_flight: stages of ours there; `tokens` is what they booked.
        ends: command number of each of them -> when it is predicted to end, in the core's time.
        free_s: when the next stage sent there is predicted to begin; None = at once.
        kv_limit_bytes: of all its engines.
        last_seq: command number of the last stage sent there.
        readiness: 1 when an engine is awake, 0.5 when one is about to be, else 0.
        ready_in_s: predicted seconds until the readiest engine can serve.
        disruption_s: C_deg, seconds lost by others when the model is brought up here; None = the
            node's idle engines cannot give that much.
        tightness: part of the free memory that bringing it up would take, 0 when it does not fit.
        blocked_until_s: no stage goes there before this time or, once it passed, the node's next
            snapshot, because of a refusal; None = not blocked.
        refusals: refusals in a row.
        failure: why every engine of the model there has failed; None while some has not.
        offered: the node can run the model; False keeps a vanished place until its stages ended.
    """

    __slots__ = (
        "blocked_until_s",
        "capacity",
        "devices",
        "disruption_s",
        "ends",
        "engines",
        "failure",
        "free_s",
        "in_flight",
        "kv_limit_bytes",
        "last_seq",
        "model",
        "name",
        "node",
        "num_batch",
        "offered",
        "profile",
        "readiness",
        "ready_in_s",
        "refusals",
        "reserved",
        "slots",
        "tightness",
        "tokens",
    )

    def __init__(self, node: NodeState, model: ModelName) -> None:
        self.node = node
        self.model = model
        self.name = f"{model}@{node.name}"
        self.profile: ModelProfile | None = None
        self.failure: str | None = None
        self.engines: tuple[EngineSnapshot, ...] = ()
        self.devices: frozenset[DeviceName] = frozenset()
        self.slots = 0
        self.capacity = 0
        self.reserved = 0
        self.num_batch = 0
        self.in_flight = 0
        self.tokens = 0
        self.ends: dict[int, float] = {}
        self.free_s: float | None = None
        self.last_seq = 0
        self.kv_limit_bytes = 0
        self.readiness = 0.0
        self.ready_in_s = 0.0
        self.disruption_s: float | None = 0.0
        self.tightness = 0.0
        self.blocked_until_s: float | None = None
        self.refusals = 0
        self.offered = True

    @property
    def is_usable(self) -> bool:
        """The node takes stages for this model, be it now or later."""
        return self.offered and self.node.is_usable

    @property
    def is_open(self) -> bool:
        """A stage could go there now."""
        return self.in_flight < self.slots and self.blocked_until_s is None and self.is_usable

    def is_open_to(self, service_class: ServiceClass) -> bool:
        """A stage of the class could go there now."""
        return self.is_open and not (
            self.is_closed_to_batch and service_class is ServiceClass.BATCH
        )

    @property
    def is_closed_to_batch(self) -> bool:
        """Batch stages hold every slot that is not reserved for interactive ones."""
        return self.reserved > 0 and self.num_batch >= self.slots - self.reserved

    @property
    def takes_memory(self) -> bool:
        """A first stage there has the node find memory for an engine."""
        return self.readiness == 0.0 and self.profile is not None

    def count_neighbours(self) -> int:
        """Other models with stages of ours on the same device, so that engines take turns there.

        A model that could start on any of several devices is taken to find the quietest.
        """
        others = [place for place in self.node.busy.values() if place is not self]
        if not others:
            return 0
        if self.devices:
            return sum(not self.devices.isdisjoint(place.devices) for place in others)
        known = self.node.compute_devices()
        return min((sum(d in place.devices for place in others) for d in known), default=0)

    def predict_free_s(self, extra: int = 0) -> float | None:
        """When a stage sent there with `extra` others before it would begin; None = at once.

        The k-th predicted end, k = stages that must leave first.
        """
        surplus = self.in_flight + extra - self.capacity
        if surplus < 0:
            return None
        ends = sorted(self.ends.values())
        return ends[min(surplus, len(ends) - 1)] if ends else None

    def need_bytes(self, *, least: bool) -> int:
        """Device bytes that an engine of the model needs on top of what it holds asleep."""
        profile = self.profile
        if profile is None:
            return 0
        for engine in self.engines:
            if engine.status in _KEEPS_CONTEXT:
                kv_bytes = engine.kv_limit_bytes or profile.kv_least_bytes
                return estimate_awake_bytes(profile, kv_bytes) - profile.context_bytes
        kv_bytes = profile.kv_least_bytes if least else profile.kv_pool_bytes
        return estimate_starting_bytes(profile, kv_bytes)


class NodeState:
    """One connected node.

    Attributes:
        received_s: when its last snapshot came, in the core's time.
        rtt_s: round trip as declared for its cluster, else as measured.
        is_usable: it takes new stages (not draining, not taken over by a newer coordinator).
        in_flight: stages of ours on it; `busy` are the places that have them.
        unapplied: commands that its last snapshot does not contain: seq -> (model, tokens).
    """

    __slots__ = (
        "busy",
        "in_flight",
        "is_usable",
        "name",
        "places",
        "received_s",
        "rtt_s",
        "snapshot",
        "unapplied",
    )

    def __init__(self, snapshot: NodeSnapshot) -> None:
        self.name = snapshot.node
        self.snapshot = snapshot
        self.received_s = 0.0
        self.rtt_s = 0.0
        self.is_usable = True
        self.in_flight = 0
        self.places: dict[ModelName, Place] = {}
        self.busy: dict[ModelName, Place] = {}
        self.unapplied: dict[int, tuple[ModelName, int]] = {}

    def compute_devices(self) -> list[DeviceName]:
        """Where engines run."""
        return [d.device for d in self.snapshot.devices if d.device != HOST_DEVICE]

    def weigh_memory(self) -> None:
        """Bring `disruption_s` and `tightness` of every place up to date.

        Models that were sent their first stage and are not coming up yet in the snapshot have
        their memory taken off the headroom: the node will find it for them first.
        """
        headroom = max(
            (d.headroom_bytes for d in self.snapshot.devices if d.device != HOST_DEVICE), default=0
        )
        due = [p for p in self.places.values() if p.takes_memory and p.in_flight]
        headroom -= sum(place.need_bytes(least=False) for place in due)
        for place in self.places.values():
            if not place.takes_memory or place.in_flight:
                place.disruption_s, place.tightness = 0.0, 1.0
                continue
            need = place.need_bytes(least=False)
            cost_s = estimate_degradation_s(need, headroom, self.snapshot.curve)
            if cost_s is None:
                need = place.need_bytes(least=True)
                cost_s = estimate_degradation_s(need, headroom, self.snapshot.curve)
            place.disruption_s = cost_s
            place.tightness = need / headroom if 0 < need <= headroom else 0.0


def describe_place(place: Place, engines: tuple[EngineSnapshot, ...]) -> None:
    """Slots and readiness of a place from the engines that serve it."""
    place.engines = engines
    place.failure = None
    place.kv_limit_bytes = sum(engine.kv_limit_bytes for engine in engines)
    place.devices = _find_devices(place)
    if not engines:
        assert place.profile is not None
        place.slots = assumed_slots(place.profile)
        place.capacity = max(1, place.slots - 1)
        place.readiness, place.ready_in_s = 0.0, place.profile.cold_start_s
        return
    place.slots = sum(engine.slots for engine in engines)
    place.capacity = max(1, place.slots - len(engines))
    if all(engine.status is EngineStatus.FAILED for engine in engines):
        place.failure = engines[0].failure or "its engine has failed"
        # A stage asks the node now and then: its refusal says what is wrong, or it tries again.
        place.slots = max(1, place.slots)
    if any(engine.status.is_awake for engine in engines):
        place.readiness = 1.0
    else:
        place.readiness = 0.5 if any(engine.status in COMING for engine in engines) else 0.0
    place.ready_in_s = min(engine.ready_in_s for engine in engines)


def _find_devices(place: Place) -> frozenset[DeviceName]:
    found = frozenset(device for engine in place.engines for device in engine.devices)
    known = place.node.compute_devices()
    is_ours = place.profile is not None and place.profile.awake_bytes > 0
    return found if found or not is_ours or len(known) > 1 else frozenset(known)


def assumed_slots(profile: ModelProfile) -> int:
    """Stages that a model with no engine yet is offered: min(max_batch, what its KV admits) + 1.

    Source: algorithms section 3, Slots. `kv_least_bytes` holds one sequence of the full model
    length; the pool admits at least one.
    """
    admitted = profile.max_batch
    if profile.kv_least_bytes > 0:
        admitted = min(admitted, max(1, profile.kv_pool_bytes // profile.kv_least_bytes))
    return admitted + 1


NO_PLACES: Mapping[NodeName, Place] = {}
