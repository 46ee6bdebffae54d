"""What the coordinator believes of its nodes: dated snapshots plus its own reservations.

Theory of operation. A `Place` is one model on one node: that is what a stage is sent to (which of
several replicas serves it is the node's business). A place takes `slots` stages; `in_flight`
counts the stages this coordinator sent there and has not seen end. Snapshots never change
`in_flight`: it already holds every reservation made before or after the snapshot's `applied_seq`,
each exactly once, and it errs on the safe side, since a stage's end is known to the node first.
What a snapshot does change: slots, residency, what the node can run at all. Reservations that the
snapshot's own figures (booked bytes) cannot contain yet are those in `NodeState.unapplied`.

A place is *open* when it has a free slot, is not blocked by a refusal, and its node takes stages.
Open places are indexed per model, so a full model costs nothing to look at.

Policies read these objects and never change them; `CoordinatorCore` is the one owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot

_COMING = (EngineStatus.STARTING, EngineStatus.WAKING, EngineStatus.RESUMING)


class Place:
    """One model on one node.

    Attributes:
        profile: None for an engine that somebody else runs.
        slots: stages it takes at once; `reserved` of them are closed to batch stages.
        in_flight: stages of ours there; `tokens` is what they booked.
        readiness: 1 when an engine is awake, 0.5 when one is about to be, else 0.
        ready_in_s: predicted seconds until the readiest engine can serve.
        blocked_until_s: no stage goes there before this time or, once it passed, the node's next
            snapshot, because of a refusal; None = not blocked.
        refusals: refusals in a row.
        failure: why every engine of the model there has failed; None while some has not.
        offered: the node can run the model; False keeps a vanished place until its stages ended.
    """

    __slots__ = (
        "blocked_until_s",
        "engines",
        "failure",
        "in_flight",
        "model",
        "name",
        "node",
        "offered",
        "profile",
        "readiness",
        "ready_in_s",
        "refusals",
        "reserved",
        "slots",
        "tokens",
    )

    def __init__(self, node: NodeState, model: ModelName) -> None:
        self.node = node
        self.model = model
        self.name = f"{model}@{node.name}"
        self.profile: ModelProfile | None = None
        self.failure: str | None = None
        self.engines: tuple[EngineSnapshot, ...] = ()
        self.slots = 0
        self.reserved = 0
        self.in_flight = 0
        self.tokens = 0
        self.readiness = 0.0
        self.ready_in_s = 0.0
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


class NodeState:
    """One connected node.

    Attributes:
        received_s: when its last snapshot came, in the core's time.
        is_usable: it takes new stages (not draining, not taken over by a newer coordinator).
        in_flight: stages of ours on it.
        unapplied: commands that its last snapshot does not contain: seq -> (model, tokens).
    """

    __slots__ = (
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
        self.unapplied: dict[int, tuple[ModelName, int]] = {}


class FleetState:
    """Every connected node and every place on it."""

    __slots__ = ("_epoch", "_open", "_places", "nodes")

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self.nodes: dict[NodeName, NodeState] = {}
        self._places: dict[ModelName, dict[NodeName, Place]] = {}
        self._open: dict[ModelName, dict[NodeName, Place]] = {}

    # --- reading --------------------------------------------------------------------------------

    def places(self, model: ModelName) -> Mapping[NodeName, Place]:
        """Every place of the model, full and blocked ones included."""
        return self._places.get(model, _NONE)

    def open_places(self, model: ModelName) -> Mapping[NodeName, Place]:
        """Places of the model that could take a stage now."""
        return self._open.get(model, _NONE)

    def usable(
        self, models: Collection[ModelName], excluded: Collection[tuple[NodeName, ModelName]] = ()
    ) -> Iterator[Place]:
        """Places that take these models now or later, without the excluded ones."""
        for model in models:
            for place in self.places(model).values():
                if place.is_usable and (place.node.name, model) not in excluded:
                    yield place

    # --- reservations ---------------------------------------------------------------------------

    def reserve(self, place: Place, seq: int, tokens: int) -> None:
        """A stage was sent to `place` by command `seq`."""
        place.in_flight += 1
        place.tokens += tokens
        node = place.node
        node.in_flight += 1
        node.unapplied[seq] = (place.model, tokens)
        if place.in_flight >= place.slots:
            self._open[place.model].pop(node.name, None)

    def release(self, place: Place, seq: int, tokens: int) -> None:
        """The stage of command `seq` is over."""
        place.in_flight -= 1
        place.tokens -= tokens
        node = place.node
        node.in_flight -= 1
        node.unapplied.pop(seq, None)
        if not place.offered and not place.in_flight:
            self._forget(place)
        else:
            self.refresh(place)

    def refresh(self, place: Place) -> None:
        """Bring the index of open places up to date."""
        open_places = self._open.setdefault(place.model, {})
        if place.is_open:
            open_places[place.node.name] = place
        else:
            open_places.pop(place.node.name, None)

    # --- snapshots ------------------------------------------------------------------------------

    def is_outdated(self, snapshot: NodeSnapshot) -> bool:
        """A newer snapshot of this connection has been applied already.

        By command numbers, which only rise, and not by `as_of_s`: that is the node's clock, or an
        estimate on ours, and an estimate may fall by the jitter of the round trip.
        """
        node = self.nodes.get(snapshot.node)
        if node is None:
            return False
        last = node.snapshot
        return (snapshot.epoch, snapshot.applied_seq) < (last.epoch, last.applied_seq)

    def apply(self, snapshot: NodeSnapshot, rtt_s: float, now_s: float) -> bool:
        """Take a snapshot over. Returns whether what can be served at all has changed."""
        node = self.nodes.get(snapshot.node)
        is_new = node is None
        if node is None:
            node = self.nodes[snapshot.node] = NodeState(snapshot)
        before = _servable(node)
        node.snapshot, node.received_s, node.rtt_s = snapshot, now_s, rtt_s
        node.is_usable = not snapshot.draining and snapshot.epoch <= self._epoch
        if snapshot.epoch == self._epoch:
            for seq in [seq for seq in node.unapplied if seq <= snapshot.applied_seq]:
                del node.unapplied[seq]
        self._update_places(node, snapshot, now_s)
        return is_new or before != _servable(node)

    def _update_places(self, node: NodeState, snapshot: NodeSnapshot, now_s: float) -> None:
        engines: dict[ModelName, list[EngineSnapshot]] = {}
        for engine in snapshot.engines:
            engines.setdefault(engine.model, []).append(engine)
        profiles = {profile.model: profile for profile in snapshot.profiles}
        offered = dict.fromkeys([*profiles, *engines])
        for model, _ in snapshot.never_fits:
            offered.pop(model, None)
        for model in offered:
            place = node.places.get(model)
            if place is None:
                place = node.places[model] = Place(node, model)
                self._places.setdefault(model, {})[node.name] = place
            place.profile, place.offered = profiles.get(model), True
            _describe(place, tuple(engines.get(model, ())))
        for model, place in list(node.places.items()):
            if model not in offered:
                place.offered, place.slots = False, 0
                if not place.in_flight:
                    self._forget(place)
                    continue
            if place.blocked_until_s is not None and place.blocked_until_s <= now_s:
                place.blocked_until_s = None
            self.refresh(place)

    def _forget(self, place: Place) -> None:
        place.offered = False
        place.node.places.pop(place.model, None)
        for index in (self._places, self._open):
            by_node = index.get(place.model)
            if by_node is not None and by_node.get(place.node.name) is place:
                del by_node[place.node.name]

    def lose(self, node_name: NodeName) -> None:
        """The node is gone; whoever had stages there has released them before."""
        node = self.nodes.pop(node_name)
        for place in list(node.places.values()):
            self._forget(place)


_NONE: Mapping[NodeName, Place] = {}


def _servable(node: NodeState) -> list[tuple[ModelName, bool]]:
    """What the node takes stages for, and whether there is hope in it."""
    return [(m, place.failure is None) for m, place in node.places.items() if place.is_usable]


def _describe(place: Place, engines: tuple[EngineSnapshot, ...]) -> None:
    """Slots and readiness of a place from the engines that serve it."""
    place.engines = engines
    place.failure = None
    if not engines:
        assert place.profile is not None
        place.slots = assumed_slots(place.profile)
        place.readiness, place.ready_in_s = 0.0, place.profile.cold_start_s
        return
    place.slots = sum(engine.slots for engine in engines)
    if all(engine.status is EngineStatus.FAILED for engine in engines):
        place.failure = engines[0].failure or "its engine has failed"
        # A stage asks the node now and then: its refusal says what is wrong, or it tries again.
        place.slots = max(1, place.slots)
    if any(engine.status.is_awake for engine in engines):
        place.readiness = 1.0
    else:
        place.readiness = 0.5 if any(engine.status in _COMING for engine in engines) else 0.0
    place.ready_in_s = min(engine.ready_in_s for engine in engines)


def assumed_slots(profile: ModelProfile) -> int:
    """Stages that a model with no engine yet is offered: min(max_batch, what its KV admits) + 1.

    Source: algorithms section 3, Slots. `kv_least_bytes` holds one sequence of the full model
    length; the pool admits at least one.
    """
    admitted = profile.max_batch
    if profile.kv_least_bytes > 0:
        admitted = min(admitted, max(1, profile.kv_pool_bytes // profile.kv_least_bytes))
    return admitted + 1
