"""Simulation files: what they declare, and what is said about mistakes in them."""

from __future__ import annotations

from typing import Any

import pytest

from maestroctl.domain.units import GIB
from maestroctl.errors import ConfigError
from maestroctl.sim.config import make_simulation
from tests.unit.sim.files import SMALL


def test_a_file_declares_fleet_workload_and_errors() -> None:
    spec = make_simulation(SMALL)
    assert list(spec.world.fleet.nodes) == ["n1", "n2"]
    assert list(spec.world.profiles) == ["small", "large"]
    assert spec.workload.jobs == 40
    assert [c.share for c in spec.workload.classes] == [0.6, 0.4]
    assert spec.error.rho == 0.5
    assert spec.world.network.rtt_s == 0.005


def test_costs_may_be_given_in_place_of_geometry() -> None:
    model = {"name": "m", "weights": GIB, "c0": "20ms", "gamma": 1.5, "wake": 3}
    spec = make_simulation({"model": [model]})
    (profile,) = spec.world.profiles.values()
    assert profile.iteration.c0_s == 0.02
    assert profile.iteration.gamma == 1.5
    assert profile.wake_s == 3.0


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"arrivals": {"rte": 1}}, "arrivals.rte", "unknown key"),
        ({"arrivals": {"kind": "steady"}}, "arrivals.kind", "no arrivals are called"),
        ({"arrivals": {"kind": "trace", "trace": "x"}}, "arrivals.trace", "data folder"),
        ({"prediction": {"error": "big"}}, "prediction.error", "no prediction error"),
        ({"class": [{"models": ["huge"]}]}, "class[0].models", "expected one of"),
        ({"class": [{"share": "much"}]}, "class[0].share", "a number"),
        ({"model": [{"name": "m"}]}, "model[0].weights", "the size of the weights"),
        ({"policy": {"orderin": "fcfs"}}, "policy.orderin", "unknown key"),
        ({"model": []}, "model", "at least one"),
    ],
)
def test_a_mistake_is_named_with_its_key(change: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_simulation({**SMALL, **change})
    assert caught.value.key == key
    assert words in str(caught.value)
