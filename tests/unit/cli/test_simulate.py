"""`simulate`: what it prints and writes."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_every_core_has_its_log_whatever_its_name(file: Path, tmp_path: Path) -> None:
    file.write_text(FILE + '[[node]]\nname = "rack/\u6a21-ß"\ncount = 2\n')
    logs = tmp_path / "logs"
    for _ in range(2):  # into the same folder
        done = CliRunner().invoke(app, ["simulate", str(file), "--event-logs", str(logs)])
        assert done.exit_code == 0, done.exception
    assert {path.name for path in logs.glob("*.jsonl")} == {
        "coordinator.jsonl",
        "node-rack~\u6a21-ß1.jsonl",
        "node-rack~\u6a21-ß2.jsonl",
    }
    assert CliRunner().invoke(app, ["replay", str(logs)]).exit_code == 0


def test_a_log_that_was_asked_for_and_cannot_be_written_is_a_failure(
    file: Path, tmp_path: Path
) -> None:
    limits = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (9000, 9000))"
    code = f"{limits}; from maestroctl.__main__ import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "simulate", str(file), "--event-logs", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert "the event log" in done.stderr
    assert "cannot be written" in done.stderr


def test_a_file_that_is_missing_is_named_without_a_wrong_way_out(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", str(tmp_path / "none.toml")])
    assert isinstance(result.exception, ConfigError)
    assert result.exception.message == "there is no such file"
    assert result.exception.hint is None


def test_jobs_that_cannot_finish_are_said_with_the_reason(file: Path) -> None:
    file.write_text(FILE + '[[node]]\nmemory = "1 GB"\n')
    done = CliRunner().invoke(app, ["simulate", str(file)])
    assert "20 of 20 jobs did not finish: " in done.stderr
    figures = json.loads(CliRunner().invoke(app, ["simulate", str(file), "--json"]).stdout)
    assert sum(figures["unfinished"].values()) == 20
