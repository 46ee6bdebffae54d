"""The index says at any time what sorting all places would."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.domain.ids import NodeName
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.scheduler.routing.place_index import PlaceIndex
from maestroctl.testing.coordinator_builders import make_snapshot
from tests.unit.scheduler.routing.support import ASLEEP, AWAKE, M, node

NAMES = ("n1", "n2", "n3")
CURVE = ((1 << 29, 0.5), (1 << 31, 4.0))


def names(entries: list[tuple[float, int, str, Place]]) -> list[str]:
    return [entry[2] for entry in entries]


def expected(fleet: FleetState) -> dict[str, list[str]]:
    """From scratch: every place put into an empty index."""
    index = PlaceIndex(fleet._weights)
    for place in fleet.places(M).values():
        index.update(place)
    return {what: names(getattr(index, what)) for what in ("ready", "queueing", "asleep")}


@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_after_any_events_each_place_is_where_it_belongs_and_once(data: st.DataObject) -> None:
    fleet, seq = FleetState(1), 0
    sent: list[tuple[Place, int]] = []
    for step in range(data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from(NAMES))
        place = fleet.places(M).get(NodeName(name))
        match data.draw(st.sampled_from(["look", "send", "send", "end", "block", "lose", "gone"])):
            case "look":
                status = data.draw(st.sampled_from([AWAKE, ASLEEP, None]))
                free = data.draw(st.integers(0, 3)) << 30
                snapshot = node(name, status, free_bytes=free, curve=CURVE)
                snapshot = replace(snapshot, draining=data.draw(st.sampled_from([False, True])))
                fleet.apply(snapshot, data.draw(st.sampled_from([0.0, 0.1])), float(step))
            case "send" if place is not None and place.is_open:
                seq += 1
                fleet.reserve(place, seq, 10, data.draw(st.floats(0, 9)))
                sent.append((place, seq))
            case "end" if sent:
                fleet.release(*sent.pop(data.draw(st.integers(0, len(sent) - 1))), 10)
            case "block" if place is not None:
                place.blocked_until_s = data.draw(st.sampled_from([None, 1e9]))
                fleet.refresh(place)
            case "gone":
                fleet.apply(make_snapshot(name, [], []), 0.0, float(step))
            case "lose" if name in fleet.nodes:
                for item in [item for item in sent if item[0].node.name == name]:
                    fleet.release(*item, 10)
                    sent.remove(item)
                fleet.lose(NodeName(name))
        index = fleet.index(M)
        found = {what: names(getattr(index, what)) for what in ("ready", "queueing", "asleep")}
        assert found == expected(fleet)
        everywhere = [place.name for place in index]
        assert len(set(everywhere)) == len(everywhere)
        assert all(place.node.name in fleet.nodes for place in index)


def test_of_places_that_are_alike_the_fuller_comes_first() -> None:
    fleet = FleetState(1)
    for name in NAMES:
        fleet.apply(node(name, slots=5), 0.0, 0.0)
    for seq, name in enumerate(("n1", "n1", "n2"), start=1):
        fleet.reserve(fleet.places(M)[NodeName(name)], seq, 10, 9.0)
    assert names(fleet.index(M).ready) == ["m@n1", "m@n2", "m@n3"]
