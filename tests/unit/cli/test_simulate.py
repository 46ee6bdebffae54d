"""`simulate`: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from maestroctl.cli.main import app
from maestroctl.errors import ConfigError

FILE = """
[run]
jobs = 20
[[model]]
name = "m"
weights = "7.55 GB"
[[class]]
apps = ["fireact_hotpotqa"]
deadline_factor = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sim.toml"
    path.write_text(FILE)
    return path


def test_json_has_the_figures_and_is_the_same_each_time(file: Path) -> None:
    first, second = (
        json.loads(CliRunner().invoke(app, ["simulate", str(file), "--json"]).stdout)
        for _ in range(2)
    )
    assert first["all"]["jobs"] == 20
    assert 0 <= first["interactive"]["slo_attainment"] <= 1
    for figures in (first, second):
        del figures["seconds"], figures["cpu_seconds"]
    assert first == second


def test_another_seed_gives_other_figures(file: Path) -> None:
    found = [
        json.loads(CliRunner().invoke(app, ["simulate", str(file), "--seed", s, "--json"]).stdout)
        for s in ("1", "2")
    ]
    assert found[0]["simulated_s"] != found[1]["simulated_s"]


def test_an_unknown_policy_is_a_mistake_of_the_caller(file: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(file), "--ordering", "fcsf"])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.hint == "did you mean 'fcfs'?"
