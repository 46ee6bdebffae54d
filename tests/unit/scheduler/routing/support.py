"""Fleets and stages for the tests of routing."""

from __future__ import annotations

from dataclasses import replace

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import DeviceName, ModelName, NodeName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.snapshot import DeviceSnapshot, NodeSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import GIB
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.routing.fleet_state import FleetState, Place
from maestroctl.testing.coordinator_builders import (
    PREDICTION,
    make_engine,
    make_profile,
    make_snapshot,
    make_stage,
)

M = ModelName("m")
AWAKE, ASLEEP = EngineStatus.IDLE, EngineStatus.SLEEPING


def node(
    name: str,
    status: EngineStatus | None = AWAKE,
    *,
    slots: int = 2,
    free_bytes: int = 8 * GIB,
    curve: tuple[tuple[int, float], ...] = (),
    ready_in_s: float | None = None,
    profile: ModelProfile | None = None,
) -> NodeSnapshot:
    """A node with one engine of model `m` in `status`; None = none was ever started."""
    profile = profile or make_profile()
    if ready_in_s is None:
        ready_in_s = 0.0 if status is AWAKE else profile.wake_s
    engines = [] if status is None else [make_engine("m", slots, status, name, ready_in_s)]
    snapshot = make_snapshot(name, engines, [profile])
    device = DeviceSnapshot(DeviceName("cuda:0"), 20 * GIB, 20 * GIB - free_bytes)
    return replace(snapshot, devices=(device,), curve=curve)


def fleet_of(*nodes: NodeSnapshot, rtt_s: dict[str, float] | None = None) -> FleetState:
    """These nodes, all heard of at time 0."""
    fleet = FleetState(1)
    for snapshot in nodes:
        fleet.apply(snapshot, (rtt_s or {}).get(snapshot.node, 0.0), 0.0)
    return fleet


def place_of(fleet: FleetState, name: str) -> Place:
    """The place of model `m` there."""
    return fleet.places(M)[NodeName(name)]


def fill(fleet: FleetState, name: str, *ends_s: float) -> None:
    """Send one stage there per predicted end."""
    place = place_of(fleet, name)
    for number, end_s in enumerate(ends_s, start=place.last_seq + 1):
        fleet.reserve(place, number, 100, end_s)


def stage_of(
    prompt: int = 50, service_class: ServiceClass = ServiceClass.INTERACTIVE, role: str = "a"
) -> StageState:
    """A stage that has just become ready."""
    stage = make_stage(prompt_tokens=prompt, service_class=service_class, role=role)
    job = JobState(stage.job_id, "", service_class, 0.0, None)
    return StageState(stage, PREDICTION, job, 0.0)
