"""Small fleets in many states, for the suites over every policy."""

from __future__ import annotations

import hypothesis.strategies as st

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.testing.coordinator_builders import (
    PREDICTION,
    make_engine,
    make_profile,
    make_snapshot,
    make_stage,
)

MODELS = ("a", "b", "c")
NODES = ("n1", "n2", "n3", "n4")


@st.composite
def fleets(draw: st.DrawFn) -> FleetState:
    """Up to four nodes, any engines, some of their slots taken, some places blocked."""
    fleet = FleetState(epoch=1)
    seq = 0
    for node in draw(st.permutations(NODES))[: draw(st.integers(0, 4))]:
        models = draw(st.lists(st.sampled_from(MODELS), unique=True))
        engines = [
            make_engine(
                model, draw(st.integers(0, 3)), draw(st.sampled_from(list(EngineStatus))), node
            )
            for model in models
            if draw(st.booleans())
        ]
        snapshot = make_snapshot(
            node,
            engines,
            [make_profile(model) for model in models],
            draining=draw(st.sampled_from([False, False, False, True])),
        )
        fleet.apply(snapshot, 0.0, 1.0)
        for place in fleet.nodes[NodeName(node)].places.values():
            place.reserved = draw(st.integers(0, 1))
            for _ in range(draw(st.integers(0, 2))):
                if place.is_open:
                    seq += 1
                    fleet.reserve(place, seq, 100)
            if draw(st.sampled_from([False, False, True])):
                place.blocked_until_s = 5.0
                fleet.refresh(place)
    return fleet


@st.composite
def stages(draw: st.DrawFn) -> StageState:
    """A stage in any state that routing may see."""
    candidates = draw(st.lists(st.sampled_from(MODELS), unique=True, min_size=1))
    stage = make_stage(
        models=candidates,
        arrival_s=draw(st.floats(0, 10)),
        service_class=draw(st.sampled_from(list(ServiceClass))),
        external=draw(st.booleans()),
    )
    job = JobState(stage.job_id, "", stage.service_class, stage.arrival_s, None)
    state = StageState(stage, PREDICTION, job, stage.arrival_s)
    nodes = st.sampled_from(NODES).map(NodeName)
    pairs = st.tuples(nodes, st.sampled_from(MODELS).map(ModelName))
    state.excluded = tuple(sorted(draw(st.lists(pairs, max_size=3, unique=True))))
    state.avoid = draw(st.none() | nodes)
    return state


def all_places(fleet: FleetState) -> list[Place]:
    """In the order in which the nodes connected."""
    return [place for node in fleet.nodes.values() for place in node.places.values()]
