"""Slots kept for interactive stages, so that long batch stages shut nobody out.

A stage gives way only at its end. Where every slot of an engine holds a batch stage, an interactive
one waits for the first of them to end. So

    R = ceil(a + sqrt(a)),    a = lambda_interactive x E[S_interactive]

of the slots that a model's awake engines serve at once are closed to batch stages: a is the number
of interactive stages that are served at a time, sqrt(a) the standard deviation of that number where
they come independently of each other. What comes beyond waits for the next slot to be freed.
lambda is the rate of the model, over about the last `MEMORY_S`; E[S_interactive] the mean of about
the last 50 interactive stages. Without interactive stages R falls to 0.

R is of the whole fleet and kept on as few places as hold it: routing takes an interactive stage to
where a slot is free, so one reserve serves all, and a + sqrt(a) of all is less than the sum of each
engine's own. A place that keeps slots also loses the one that it takes beyond what it serves, or
that one would be filled and interactive stages would wait inside the engine; few places lose it
then. One slot of each stays open to batch stages.

The first design kept ceil(lambda_interactive x E[S_batch]): as many as come while one batch stage
runs, as if no slot were freed meanwhile. Three quarters of these stood empty
(docs/decisions/0015).

Outside R work is conserved per class: a batch stage waits only while every open slot is reserved.
Orders that say `reserves_slots` use it; the baselines do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.scheduler.routing.fleet_state import FleetState, Place

MEMORY_S = 60.0
"""An arrival this long ago counts 1/e."""
_STAGE_MEMORY = 0.98
MAX_MODELS = 256
_LEAST_RATE = 1e-3
"""Stages per second below which nobody is expected."""
_STEADY = 0.02
"""R is left alone while it would change by this part of itself at most."""

_Shape = tuple[bool, int, int]
"""Awake and taking stages, slots, capacity of a place."""


class _Load:
    """What is known of one model."""

    __slots__ = ("count", "kept", "served_n", "served_s", "shapes", "since_s")

    def __init__(self) -> None:
        self.count = 0.0  # interactive arrivals, faded to `since_s`
        self.since_s = 0.0
        self.served_s = 0.0  # seconds and number of interactive stages that ended, faded
        self.served_n = 0.0
        self.kept = 0  # R of the model, before it is bounded by the slots there are
        self.shapes: dict[NodeName, _Shape] = {}  # of its places when it was spread

    def rate(self, now_s: float) -> float:
        return self.count * math.exp((self.since_s - now_s) / MEMORY_S) / MEMORY_S


class InteractiveReserves:
    """Sets `Place.reserved`. Owner: `CoordinatorCore`.

    Args:
        fleet: whose places are set.
        enabled: False = nothing is ever reserved.
    """

    def __init__(self, fleet: FleetState, *, enabled: bool) -> None:
        self._fleet = fleet
        self._enabled = enabled
        self._loads: dict[ModelName, _Load] = {}

    def stage_arrived(self, stage: StageDescriptor, now_s: float) -> bool:
        """A stage became ready; it counts for its first candidate model.

        Returns:
            Whether slots of that model may have been opened to batch stages.
        """
        if not self._enabled or stage.service_class is not ServiceClass.INTERACTIVE:
            return False
        model = stage.candidates[0]
        load = self._load(model)
        if load is None:
            return False
        load.count = load.rate(now_s) * MEMORY_S + 1.0
        load.since_s = now_s
        return self._settle(model, load, now_s)

    def stage_ended(
        self, model: ModelName, service_class: ServiceClass, served_s: float, now_s: float
    ) -> None:
        """A stage of the model ended; its slots are handed on after this."""
        if not self._enabled:
            return
        load = self._load(model)
        if load is None:
            return
        if service_class is ServiceClass.INTERACTIVE:
            load.served_s = _STAGE_MEMORY * load.served_s + served_s
            load.served_n = _STAGE_MEMORY * load.served_n + 1.0
        self._settle(model, load, now_s)

    def places_changed(self, places: Iterable[Place]) -> None:
        """A snapshot came: these may be awake by now, or have other slots."""
        for place in places:
            load = self._loads.get(place.model)
            if load is not None and load.shapes.get(place.node.name) != _shape_of(place):
                self._spread(place.model, load)

    def places_replaced(self) -> None:
        """Places have come or gone, or nodes turn stages away: what some kept others keep now."""
        for model, load in self._loads.items():
            self._spread(model, load)

    def kept(self, model: ModelName) -> int:
        """R of the model, before it is bounded by the slots of its places."""
        load = self._loads.get(model)
        return 0 if load is None else load.kept

    def _load(self, model: ModelName) -> _Load | None:
        load = self._loads.get(model)
        if load is None and len(self._loads) < MAX_MODELS:
            load = self._loads[model] = _Load()
        return load

    def _settle(self, model: ModelName, load: _Load, now_s: float) -> bool:
        """Bring R up to date; whether it is kept anew, on the places that are nearest by now."""
        rate, kept = load.rate(now_s), 0
        if load.served_n and rate >= _LEAST_RATE:
            at_once = rate * load.served_s / load.served_n
            kept = math.ceil(at_once + math.sqrt(at_once))
        before = load.kept
        if abs(kept - before) <= _STEADY * before:
            return False
        load.kept = kept
        self._spread(model, load)
        return True

    def _spread(self, model: ModelName, load: _Load) -> None:
        """Fill one awake place after the other, the nearest first."""
        left = load.kept
        places = self._fleet.places(model).values()
        load.shapes = {place.node.name: _shape_of(place) for place in places}
        for place in sorted(places, key=lambda place: (place.node.rtt_s, place.name)):
            kept = min(left, place.capacity - 1) if _serves(place) else 0
            left -= kept
            # What a place takes beyond what it serves at once is no slot to be kept.
            beyond = max(0, place.slots - place.capacity)
            self._fleet.keep_slots(place, min(kept + beyond, place.slots - 1) if kept else 0)


def _serves(place: Place) -> bool:
    return place.readiness == 1.0 and place.is_usable


def _shape_of(place: Place) -> _Shape:
    return (_serves(place), place.slots, place.capacity)
