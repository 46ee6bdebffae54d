"""`experiments`: what it writes and keeps, and what it says of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from maestroctl.cli.main import app
from maestroctl.errors import ConfigError
from maestroctl.experiments import catalogue
from maestroctl.experiments.harness import Experiment


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["experiments", "run", *map(str, args)])


def test_an_experiment_writes_json_and_markdown(tmp_path: Path) -> None:
    document = json.loads(run("overcommit", "--quick", "--out", tmp_path, "--json").stdout)
    assert document["headline"]["overcommit"] == pytest.approx(3.05, abs=0.01)
    assert (tmp_path / "overcommit.md").is_file()
    assert (tmp_path / "overcommit.json").is_file()


def test_several_names_give_a_document_each(tmp_path: Path) -> None:
    found = run("overcommit", "colocation", "overcommit", "--quick", "--out", tmp_path, "--json")
    assert [part["name"] for part in json.loads(found.stdout)] == ["overcommit", "colocation"]


def test_a_wrong_name_is_found_before_anything_runs(tmp_path: Path) -> None:
    result = run("overcommit", "routin", "--out", tmp_path)
    assert isinstance(result.exception, ConfigError)
    assert result.exception.hint == "did you mean 'routing'?"
    assert not list(tmp_path.iterdir())


def test_quick_and_full_exclude_each_other() -> None:
    assert run("overcommit", "--quick", "--full").exit_code == 2


def test_a_terminal_of_80_columns_is_not_overrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("overcommit", "colocation", "--quick", "--out", tmp_path).stdout.splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 80


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Experiment:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "EXPERIMENTS", {**catalogue.EXPERIMENTS, "routing": interrupted})
    result = run("overcommit", "routing", "colocation", "--quick", "--out", tmp_path)
    assert (tmp_path / "overcommit.json").is_file()
    assert "Interrupted. Finished and kept: overcommit." in result.stderr
    assert "experiments run routing colocation" in result.stderr
    assert result.exit_code != 0
