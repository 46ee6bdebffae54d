"""What the coordinator believes of its nodes: dated snapshots plus its own reservations.

Theory of operation. A `Place` is one model on one node: that is what a stage is sent to (which of
several replicas serves it is the node's business). A place takes `slots` stages; `in_flight`
counts the stages this coordinator sent there and has not seen end. Snapshots never change
`in_flight`: it already holds every reservation made before or after the snapshot's `applied_seq`,
each exactly once, and it errs on the safe side, since a stage's end is known to the node first.
What a snapshot does change: slots, residency, what the node can run at all. Reservations that the
snapshot's own figures (booked bytes) cannot contain yet are those in `NodeState.unapplied`.

A place is *open* when it has a free slot, is not blocked by a refusal, and its node takes stages;
open to batch stages when not all that is free is kept for interactive ones. Open places are indexed
per model, so a full model costs nothing to look at.

Policies read these objects and never change them; `CoordinatorCore` is the one owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.routing.place import NO_PLACES, NodeState, Place, describe_place
from maestroctl.scheduler.routing.place import assumed_slots as assumed_slots
from maestroctl.scheduler.routing.place_index import PlaceIndex
from maestroctl.scheduler.routing.placement_score import Weights

__all__ = ["FleetState", "NodeState", "Place", "assumed_slots"]


class FleetState:
    """Every connected node and every place on it.

    Args:
        epoch: of this coordinator.
        weights: of Maestro Eq 5, for the order in which routing looks at places.
        rtts: declared round trips per cluster, in place of the measured ones.
    """

    __slots__ = (
        "_contexts",
        "_epoch",
        "_index",
        "_open",
        "_open_to_batch",
        "_places",
        "_rtts",
        "_weights",
        "nodes",
    )

    def __init__(
        self,
        epoch: int,
        weights: Weights | None = None,
        rtts: Mapping[ClusterName, float] | None = None,
    ) -> None:
        self._epoch = epoch
        self._weights = weights or Weights()
        self._rtts = dict(rtts or {})
        self._index: dict[ModelName, PlaceIndex] = {}
        self._contexts: dict[ModelName, int] = {}
        self.nodes: dict[NodeName, NodeState] = {}
        self._places: dict[ModelName, dict[NodeName, Place]] = {}
        self._open: dict[ModelName, dict[NodeName, Place]] = {}
        self._open_to_batch: dict[ModelName, dict[NodeName, Place]] = {}

    # --- reading --------------------------------------------------------------------------------

    def places(self, model: ModelName) -> Mapping[NodeName, Place]:
        """Every place of the model, full and blocked ones included."""
        return self._places.get(model, NO_PLACES)

    def open_places(
        self, model: ModelName, service_class: ServiceClass = ServiceClass.INTERACTIVE
    ) -> Mapping[NodeName, Place]:
        """Places of the model that could take a stage of the class now."""
        is_batch = service_class is ServiceClass.BATCH
        return (self._open_to_batch if is_batch else self._open).get(model, NO_PLACES)

    def index(self, model: ModelName) -> PlaceIndex:
        """Places of the model that are usable and not blocked, as routing looks at them."""
        return self._index.get(model) or PlaceIndex(self._weights)

    def shortest_context(self, model: ModelName) -> float:
        """Tokens that every engine of the model takes; without limit while none is known."""
        found = self._contexts.get(model)
        if found is None:
            places = self.places(model).values()
            found = min((p.profile.max_model_len for p in places if p.profile), default=1 << 62)
            self._contexts[model] = found
        return found

    def usable(
        self, models: Collection[ModelName], excluded: Collection[tuple[NodeName, ModelName]] = ()
    ) -> Iterator[Place]:
        """Places that take these models now or later, without the excluded ones."""
        for model in models:
            for place in self.places(model).values():
                if place.is_usable and (place.node.name, model) not in excluded:
                    yield place

    # --- reservations ---------------------------------------------------------------------------

    def reserve(self, place: Place, seq: int, tokens: int, end_s: float = 0.0) -> None:
        """A stage was sent to `place` by command `seq`; it is predicted to end at `end_s`."""
        place.in_flight += 1
        place.tokens += tokens
        place.ends[seq] = end_s
        place.last_seq = seq
        node = place.node
        node.in_flight += 1
        node.busy[place.model] = place
        node.unapplied[seq] = (place.model, tokens)
        if place.in_flight == 1 and place.takes_memory:
            self._weigh(node)
        else:
            self.refresh(place)

    def rebook(self, place: Place, seq: int, more_tokens: int, end_s: float) -> None:
        """A better prediction came for the stage of command `seq`."""
        place.tokens += more_tokens
        place.ends[seq] = end_s
        if place.free_s is not None:
            self.refresh(place)

    def release(self, place: Place, seq: int, tokens: int) -> None:
        """The stage of command `seq` is over."""
        place.in_flight -= 1
        place.tokens -= tokens
        place.ends.pop(seq, None)
        node = place.node
        node.in_flight -= 1
        node.unapplied.pop(seq, None)
        if not place.in_flight:
            node.busy.pop(place.model, None)
        if not place.offered and not place.in_flight:
            self._forget(place)
        elif not place.in_flight and place.takes_memory:
            self._weigh(node)
        else:
            self.refresh(place)

    def answered(self, place: Place) -> None:
        """It answered: whatever the last snapshot said, an engine is awake there."""
        place.refusals = 0
        if place.ready_in_s:
            place.ready_in_s = 0.0
            self.refresh(place)

    def keep_slots(self, place: Place, kept: int) -> None:
        """Close the last `kept` of its slots to batch stages."""
        place.reserved = kept
        _note(self._open_to_batch, place, is_open=place.is_open_to(ServiceClass.BATCH))

    def refresh(self, place: Place) -> None:
        """Bring the indexes up to date with the place."""
        _note(self._open, place, is_open=place.is_open)
        _note(self._open_to_batch, place, is_open=place.is_open_to(ServiceClass.BATCH))
        index = self._index.get(place.model)
        if index is None:
            index = self._index[place.model] = PlaceIndex(self._weights)
        index.update(place)

    def _weigh(self, node: NodeState) -> None:
        node.weigh_memory()
        for place in node.places.values():
            self.refresh(place)

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
        node.snapshot, node.received_s = snapshot, now_s
        node.rtt_s = self._rtts.get(snapshot.cluster, rtt_s)
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
            profile = profiles.get(model)
            if place.profile != profile:
                self._contexts.pop(model, None)
            place.profile, place.offered = profile, True
            describe_place(place, tuple(engines.get(model, ())))
        node.weigh_memory()
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
        self._contexts.pop(place.model, None)
        place.offered = False
        place.node.places.pop(place.model, None)
        for index in (self._places, self._open, self._open_to_batch):
            by_node = index.get(place.model)
            if by_node is not None and by_node.get(place.node.name) is place:
                del by_node[place.node.name]
        model_index = self._index.get(place.model)
        if model_index is not None:
            model_index.remove(place)

    def lose(self, node_name: NodeName) -> None:
        """The node is gone; whoever had stages there has released them before."""
        node = self.nodes.pop(node_name)
        for place in list(node.places.values()):
            self._forget(place)


def _note(index: dict[ModelName, dict[NodeName, Place]], place: Place, *, is_open: bool) -> None:
    by_node = index.get(place.model)
    if by_node is None:
        by_node = index[place.model] = {}
    name = place.node.name
    if not is_open:
        by_node.pop(name, None)
    elif name not in by_node:
        by_node[name] = place


def _servable(node: NodeState) -> list[tuple[ModelName, bool]]:
    """What the node takes stages for, and whether there is hope in it."""
    return [(m, place.failure is None) for m, place in node.places.items() if place.is_usable]
