"""Places of one model in the order in which routing wants to look at them: an index, not a scan.

Three sorted lists. Keys hold only what changes with an event at the place itself (a snapshot, a
stage sent or ended), so an event moves one entry: O(log n) comparisons.

- `ready`: awake, a stage sent there begins at once; by (lambda RTT - epsilon fit, load, name).
- `queueing`: as many stages there as it serves; by (predicted beginning + RTT, load, name).
- `asleep`: the others; by (lambda (T_act + RTT) + mu C_deg - epsilon fit, load, name), those whose
  node cannot make room without ending work last.

`coming` has the names of those that are not awake and were sent stages: they are coming up.

Load is what is in flight at the place, not on its node: the latter would move every place of the
node at every stage. Blocked and unusable places are in no list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from maestroctl.scheduler.routing.place import Place
from maestroctl.scheduler.routing.placement_score import EPSILON_S, Weights, estimate_fit

NO_ROOM_S = 1e9
"""Added to the key of places that have no room: behind every other."""

Entry = tuple[float, int, str, Place]
"""Names are unique within a model, so places never compare."""


class PlaceIndex:
    """Index of one model's places.

    Args:
        weights: of Eq 5, for the order of `asleep`.
    """

    __slots__ = ("_entries", "_weights", "asleep", "coming", "queueing", "ready")

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.ready: list[Entry] = []
        self.queueing: list[Entry] = []
        self.asleep: list[Entry] = []
        self.coming: set[str] = set()
        self._entries: dict[str, tuple[list[Entry], Entry]] = {}

    def update(self, place: Place) -> None:
        """Put the place where it belongs now."""
        place.free_s = place.predict_free_s()
        if place.in_flight and place.readiness < 1.0:
            self.coming.add(place.name)
        else:
            self.coming.discard(place.name)
        target, key = self._position(place)
        held = self._entries.get(place.name)
        if held is not None:
            entries, entry = held
            if entries is target and entry[0] == key and entry[1] == place.in_flight:
                return
            _take_out(entries, entry)
        if target is None:
            self._entries.pop(place.name, None)
            return
        entry = (key, place.in_flight, place.name, place)
        insort(target, entry)
        self._entries[place.name] = (target, entry)

    def remove(self, place: Place) -> None:
        """The place is gone."""
        held = self._entries.get(place.name)
        if held is None or held[1][3] is place:
            self.coming.discard(place.name)
        if held is not None and held[1][3] is place:
            del self._entries[place.name]
            _take_out(*held)

    @property
    def num_awake(self) -> int:
        """Places that serve by now, and those that have all they can take already."""
        return len(self.ready) + len(self.queueing)

    def __iter__(self) -> Iterator[Place]:
        """Every place that is usable and not blocked."""
        for entries in (self.ready, self.queueing, self.asleep):
            for entry in entries:
                yield entry[3]

    def _position(self, place: Place) -> tuple[list[Entry] | None, float]:
        if not place.is_usable or place.blocked_until_s is not None or not place.slots:
            return None, 0.0
        rtt_s = place.node.rtt_s
        weights = self._weights
        if place.in_flight >= place.slots or place.free_s is not None:
            return self.queueing, (place.free_s or 0.0) + rtt_s
        if place.readiness == 1.0:
            return self.ready, weights.readiness * rtt_s - EPSILON_S * estimate_fit(place, 0)
        lost_s = NO_ROOM_S if place.disruption_s is None else place.disruption_s
        return self.asleep, (
            weights.readiness * (place.ready_in_s + rtt_s)
            + weights.degradation * lost_s
            - EPSILON_S * place.tightness
        )


def _take_out(entries: list[Entry], entry: Entry) -> None:
    at = bisect_left(entries, entry)
    del entries[at]
