"""Models alike in speed and confidence share the load, unless one device serves them in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maestroctl.domain.ids import DeviceName, ModelName
from maestroctl.domain.llm import IterationCost, ModelSpec
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.snapshot import DeviceSnapshot, NodeSnapshot
from maestroctl.domain.units import GIB
from maestroctl.estimate.profile_from_geometry import UNKNOWN_COST, estimate_endpoint_profile
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.events import StageEnded
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    node_says,
)

NAMES = tuple(ModelName(name) for name in ("a", "b", "c"))
COST = IterationCost(0.04, 0.002, 0.0, 0.002)


def on_one_node(models: int, cost: IterationCost = COST, slots: int = 64) -> list[NodeSnapshot]:
    """All models on one device."""
    engines = [make_engine(name, slots) for name in NAMES[:models]]
    profiles = [replace(make_profile(e.model, slots), iteration=cost) for e in engines]
    return [make_snapshot(engines=engines, profiles=profiles)]


def on_nodes(models: int, cost: IterationCost = COST, slots: int = 64) -> list[NodeSnapshot]:
    """Each model on a node of its own."""
    shown = []
    for number, name in enumerate(NAMES[:models], start=1):
        node = f"n{number}"
        profile = replace(make_profile(name, slots), iteration=cost)
        shown.append(make_snapshot(node, [make_engine(name, slots, node=node)], [profile]))
    return shown


def make_core(nodes: list[NodeSnapshot]) -> CoordinatorCore:
    allowed = {n.node: [str(e.model) for e in n.engines] for n in nodes}
    models = list(dict.fromkeys(name for names in allowed.values() for name in names))
    core = CoordinatorCore(make_fleet(models, allowed, limited(model_choice="maestroctl")), 1)
    for snapshot in nodes:
        core.handle(node_says(snapshot), 0.0)
    return core


def send(core: CoordinatorCore, number: int, models: int, confidence: float | None) -> str:
    """The model that gets one more job."""
    names = NAMES[:models]
    prediction = Prediction(
        50.0,
        100.0,
        total_tokens=dict.fromkeys(names, 100.0),
        confidence={} if confidence is None else dict.fromkeys(names, confidence),
    )
    stage = make_stage(f"s{number}", models=names)
    core.handle(arrival(stage, prediction), 1.0)
    return str(core._tables.stages[stage.stage_id].models[0])


@given(
    models=st.integers(2, 3),
    steps=st.lists(st.none() | st.integers(0, 20), min_size=4, max_size=40),
    cost=st.sampled_from([COST, replace(COST, gamma=1.9), replace(COST, c1_s=0.0), UNKNOWN_COST]),
    confidence=st.floats(0, 1),
)
@settings(deadline=None, max_examples=60)
def test_a_job_goes_to_one_of_those_with_least_in_flight(
    models: int, steps: list[int | None], cost: IterationCost, confidence: float
) -> None:
    core = make_core(on_nodes(models, cost))
    running: list[tuple[str, str]] = []
    for number, which in enumerate(steps):
        if which is None or not running:
            counts = {name: sum(m == name for m, _ in running) for name in NAMES[:models]}
            model = send(core, number, models, confidence)
            assert counts[ModelName(model)] == min(counts.values())
            running.append((model, f"s{number}"))
        else:
            stage_id = running.pop(which % len(running))[1]
            view = next(v for v in core.in_flight() if v.stage_id == stage_id)
            usage = Usage(50, 100)
            core.handle(StageEnded(view.stage_id, view.attempt, Outcome.FINISHED, True, usage), 2.0)


@pytest.mark.parametrize(
    ("gamma", "models"),
    [
        pytest.param(1.0, "abab", id="nothing is lost side by side"),
        pytest.param(1.1, "aaab", id="little is lost: the second pays beside a batch of three"),
        pytest.param(1.6, "aaaa", id="much is lost: they share a batch"),
    ],
)
def test_on_one_device_a_job_starts_the_second_engine_when_it_is_faster_there(
    gamma: float, models: str
) -> None:
    core = make_core(on_one_node(2, replace(COST, gamma=gamma)))
    assert "".join(send(core, n, 2, 0.5) for n in range(4)) == models


def test_two_engines_that_work_already_are_balanced() -> None:
    """Both are slowed down by each other: the smaller batch is the faster one."""
    core = make_core(on_one_node(2, replace(COST, gamma=1.6)))
    for n, name in enumerate("aaab"):
        core.handle(arrival(make_stage(f"x{n}", models=[name])), 1.0)
    assert [send(core, n, 2, 0.5) for n in range(3)] == ["b", "b", "a"]


def test_a_full_engine_is_relieved_by_the_other_though_both_get_slower() -> None:
    core = make_core(on_one_node(2, replace(COST, gamma=1.6), slots=2))
    assert "b" in [send(core, n, 2, 0.5) for n in range(4)]


@pytest.mark.parametrize("place", [on_nodes, on_one_node])
def test_models_of_which_nothing_is_known_are_used_in_order_until_the_first_has_a_queue(
    place: Callable[..., list[NodeSnapshot]],
) -> None:
    core = make_core(place(2, slots=4))
    models: list[str] = []
    while "b" not in models:
        models.append(send(core, len(models), 2, None))
        assert len(models) < 16
    assert models[:4] == ["a"] * 4, "named best first"


def test_two_servers_that_nobody_measured_share_the_load() -> None:
    nodes = on_nodes(2)
    nodes = [
        replace(n, profiles=(estimate_endpoint_profile(ModelSpec(e.model)),))
        for n in nodes
        for e in n.engines
    ]
    core = make_core(nodes)
    assert sorted(send(core, n, 2, 0.5) for n in range(4)) == ["a", "a", "b", "b"]


# --- neighbours --------------------------------------------------------------------------------


def two_cards(*placed: tuple[str, tuple[str, ...]]) -> FleetState:
    """A node with two devices and these models, on these devices."""
    engines = [
        replace(make_engine(model), devices=tuple(DeviceName(d) for d in devices))
        for model, devices in placed
    ]
    cards = tuple(DeviceSnapshot(DeviceName(f"cuda:{n}"), 8 * GIB, GIB) for n in range(2))
    fleet = FleetState(1)
    fleet.apply(replace(make_snapshot(engines=engines), devices=cards), 0.0, 0.0)
    for number, (model, _) in enumerate(placed[1:], start=1):
        (place,) = fleet.places(ModelName(model)).values()
        fleet.reserve(place, number, 100)
    return fleet


@pytest.mark.parametrize(
    ("own", "others", "neighbours"),
    [
        pytest.param(("cuda:0",), [("cuda:1",)], 0, id="another card"),
        pytest.param(("cuda:0",), [("cuda:0",), ("cuda:1",)], 1, id="one on the same card"),
        pytest.param(("cuda:0", "cuda:1"), [("cuda:0",), ("cuda:1",)], 2, id="split over both"),
        pytest.param((), [("cuda:0",)], 0, id="not started: the free card"),
        pytest.param((), [("cuda:0",), ("cuda:1",)], 1, id="not started: no card is free"),
    ],
)
def test_neighbours_are_the_working_models_of_the_same_device(
    own: tuple[str, ...], others: list[tuple[str, ...]], neighbours: int
) -> None:
    placed = [("a", own), *zip(("b", "c"), others, strict=False)]
    fleet = two_cards(*placed)
    (place,) = fleet.places(ModelName("a")).values()
    assert place.count_neighbours() == neighbours
    for other in list(place.node.busy.values()):
        fleet.release(other, other.last_seq, 100)
    assert place.count_neighbours() == 0, "who has nothing to do disturbs nobody"
