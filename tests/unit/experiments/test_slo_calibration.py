"""The set-up of the sweep: fewest nodes, on the routing that is best for the baselines."""

from __future__ import annotations

import pytest

from maestroctl.experiments import slo_calibration
from maestroctl.experiments.harness import Runner, Scale
from maestroctl.experiments.slo_calibration import (
    EDF_TARGET,
    EDF_TOLERANCE,
    FACTORS,
    FCFS_LIMIT,
    MAX_NODES,
    ROUTINGS,
    Baselines,
    SetUp,
    calibrate,
)
from maestroctl.sim.workload import JobSource

BEST = "round_robin"


def attained(policy: str, setup: SetUp) -> float:
    """More nodes, looser deadlines and the one good routing keep more."""
    routed = 1.15 if setup.routing == BEST else 1.0
    edf = min(1.0, 0.02 * routed * setup.nodes * setup.factor**0.7)
    return edf if policy == "edf" else edf / 5


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> Baselines:
    monkeypatch.setattr(Baselines, "_mean", lambda _, policy, setup: attained(policy, setup))
    return Baselines(Scale(), JobSource(()), Runner(lambda _: None))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_nodes_are_the_fewest_that_any_factor_serves(
    baselines: Baselines, routing: str
) -> None:
    found = baselines.find_nodes(routing)
    needed = EDF_TARGET - EDF_TOLERANCE
    serves = [
        nodes
        for nodes in range(1, MAX_NODES + 1)
        if attained("edf", SetUp(routing, nodes, FACTORS[1])) >= needed
    ]
    assert found.nodes == serves[0]
    assert abs(found.edf - EDF_TARGET) <= EDF_TOLERANCE
    assert found.fcfs < FCFS_LIMIT


@pytest.mark.usefixtures("baselines")
def test_the_routing_is_the_one_that_serves_the_baselines_best() -> None:
    found = calibrate(Scale(), JobSource(()), Runner(lambda _: None))
    assert found.routing == BEST
    assert set(found.compared) == set(ROUTINGS)
    assert abs(found.edf - EDF_TARGET) <= EDF_TOLERANCE


@pytest.mark.usefixtures("baselines")
def test_where_no_fleet_serves_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slo_calibration, "MAX_NODES", 2)
    with pytest.raises(ValueError, match="up to 2 nodes"):
        calibrate(Scale(), JobSource(()), Runner(lambda _: None))
