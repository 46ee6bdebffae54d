"""Simulation files: what they declare, and what is said about mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maestroctl.config.profile_writer import save_profile
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelSpec
from maestroctl.domain.units import GIB
from maestroctl.errors import ConfigError, ConfigErrors
from maestroctl.live.models.geometry import ModelGeometry
from maestroctl.live.profile.device import Device
from maestroctl.live.profile.lookup import find_costs
from maestroctl.sim import config_tables as schema
from maestroctl.sim.config import load_simulation, make_simulation
from tests.unit.config.test_profile_file import ENGINE, SHAPE, make_record
from tests.unit.sim.files import SMALL


def test_a_file_declares_fleet_workload_and_errors() -> None:
    spec = make_simulation(SMALL)
    assert list(spec.world.fleet.nodes) == ["n1", "n2"]
    assert list(spec.world.profiles) == ["small", "large"]
    assert spec.workload.jobs == 40
    assert [c.share for c in spec.workload.classes] == [0.6, 0.4]
    assert spec.error.rho == 0.5
    assert spec.world.network.rtt_s == 0.005


@pytest.mark.parametrize(
    ("change", "routing"),
    [
        ({}, "maestroctl"),
        ({"policy": {"ordering": "edf"}}, "maestroctl"),
        ({"policy": {"routing": "nearest"}}, "nearest"),
        ({"node": [{"name": "n"}]}, "single_node"),
        ({"node": []}, "single_node"),
    ],
    ids=["several", "of something else", "said", "one node", "no node"],
)
def test_nodes_are_routed_as_those_of_a_fleet_file(change: dict[str, Any], routing: str) -> None:
    assert make_simulation({**SMALL, **change}).world.fleet.policy.routing == routing


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
        ({"arrivals": {"kind": "steady"}}, "arrivals.kind", "expected one of"),
        ({"arrivals": {"kind": "trace", "trace": "x"}}, "arrivals.trace", "data folder"),
        ({"prediction": {"error": "big"}}, "prediction.error", "expected one of"),
        ({"class": [{"models": ["huge"]}]}, "class[0].models", "unknown model 'huge'"),
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


def with_profile(name: str, **keys: Any) -> dict[str, Any]:
    values = {key: value for key, value in SMALL.items() if key not in ("model", "class")}
    return {**values, "model": [{"name": "m", "profile": name, **keys}]}


def test_a_shipped_profile_gives_the_costs() -> None:
    spec = make_simulation(with_profile("nvidia-a100-40gb/qwen3-8b", max_model_len=4096))
    costs = spec.world.profiles[ModelName("m")]
    assert (costs.origin, costs.weights_bytes) == ("derived", 15_270_000_000)
    assert costs.max_model_len == 4096
    assert spec.world.max_num_batched_tokens == 2048


def test_a_profile_file_is_relative_to_the_simulation_and_a_cost_can_be_replaced(
    tmp_path: Path,
) -> None:
    save_profile(tmp_path / "p.toml", make_record())
    values = with_profile("p.toml", c0="50ms")
    spec = make_simulation(values, str(tmp_path / "simulation.toml"))
    costs = spec.world.profiles[ModelName("m")]
    assert costs.iteration.c0_s == 0.05
    assert costs.wake_s == make_record().costs.wake_s
    assert spec.world.max_num_batched_tokens == 256
    assert not spec.world.abilities.can_sleep_host, "on a CPU there is no other memory"


def test_the_simulator_books_with_the_same_costs_as_a_node(tmp_path: Path) -> None:
    """One file, two readers: `serve` and the simulator."""
    save_profile(tmp_path / "p.toml", make_record())
    values = with_profile("p.toml", max_model_len=2048, max_batch=8)
    spec = make_simulation(values, str(tmp_path / "simulation.toml"))
    model = ModelSpec(
        ModelName("m"), max_model_len=2048, max_batch=8, profile=str(tmp_path / "p.toml")
    )
    files = ModelGeometry(SHAPE, 269_000_000, 8192, "bfloat16")
    here = Device("anywhere", "cpu", 2)
    assert spec.world.profiles[ModelName("m")] == find_costs(model, ENGINE, files, here)


def test_geometry_beside_a_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="the profile says it"):
        make_simulation(with_profile("nvidia-a100-40gb/qwen3-8b", weights="1 GB"))


KEYS = [
    (name, key.name)
    for name, table in {**schema.SINGLE_TABLES, **schema.LIST_TABLES}.items()
    for key in table.keys
]


@pytest.mark.parametrize(("table", "key"), KEYS, ids=lambda part: part)
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -1, 10**30, "", "a\0b", {}, None],
    ids=["nan", "inf", "negative", "huge", "empty", "NUL", "table", "null"],
)
def test_nonsense_for_any_key_is_a_mistake_there(table: str, key: str, value: Any) -> None:
    own = {**SMALL.get(table, [{}])[0]} if table in schema.LIST_TABLES else {**SMALL.get(table, {})}
    own[key] = value
    rest = SMALL.get(table, [])[1:] if table in schema.LIST_TABLES else None
    change = {table: own if rest is None else [own, *rest]}
    if (key, value) == ("role_models", {}):
        return  # there may be none
    with pytest.raises(ConfigErrors) as caught:
        make_simulation({**SMALL, **change})
    assert any(key in str(error) for error in caught.value.errors)


def test_all_mistakes_are_said_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[run]\njobs = 0\n[policy]\nrouting = "x"\n[[node]]\nmodels = ["y"]\n')
    with pytest.raises(ConfigErrors) as caught:
        load_simulation(path, overrides={"policy.ordering": "fcsf"})
    found = [(error.line, error.key) for error in caught.value.errors]
    assert found == [
        (None, "policy.ordering"),
        (None, "model"),
        (2, "run.jobs"),
        (4, "policy.routing"),
        (6, "node[0].models"),
    ]
    assert caught.value.errors[0].hint == "did you mean 'fcfs'?"
    assert "command line --ordering" in str(caught.value.errors[0])


def test_names_are_given_once() -> None:
    for change in (
        {"model": [*SMALL["model"], SMALL["model"][0]]},
        {"node": [{"name": "n", "count": 2}, {"name": "n2"}]},
    ):
        with pytest.raises(ConfigError, match="already"):
            make_simulation({**SMALL, **change})


def test_the_page_of_the_simulator_names_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")
    for table, key in KEYS:
        if table != "policy":
            assert f"`{key}`" in page, f"{table}.{key}"
