"""`predict` and `predictor`: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from maestroctl.cli import api, predict_extra
from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode, exit_code_of
from maestroctl.cli.main import app
from maestroctl.cli.predict_view import addition_lines
from maestroctl.errors import ConfigError, PredictorError, StoreError
from maestroctl.predict.group_table import STATE_VERSION
from maestroctl.predict.recalibration import Observation, OnlineState, StageKey
from maestroctl.store.database import Store
from maestroctl.store.rows import MetaRow

STATUS = {
    "artifact": {
        "path": "a.mpred",
        "digest": "0" * 64,
        "trained_at": None,
        "stages": 5,
        "apps": [],
    },
    "service": {
        "state": "ready",
        "restarts": 0,
        "predictions": 7,
        "fallbacks": 1,
        "latency_ms": {"median": 1.5, "p99": None},
    },
    "online": {
        "cells": 2,
        "observations": 7,
        "coverage_q90": 0.9,
        "bias": 1.1,
        "drift": [{"workflow": "w", "role": "r", "error_ratio": 1.2}],
    },
    "refit": {"last_at": None, "last_result": None},
}


ENV = {"COLUMNS": "80", "NO_COLOR": "1", "MAESTROCTL_HOME": "/nonexistent"}


def call(*args: str) -> Any:
    terminal.__dict__.pop("out", None)  # made by an earlier test, with the width of that time
    return CliRunner(env=ENV).invoke(app, list(args))


def test_predict_answers_per_candidate_with_reasons() -> None:
    pytest.importorskip("lightgbm")
    done = call("predict", "What is 2 + 2?", "-m", "gpt-4", "-m", "new", "--tools", "3", "--json")
    said = json.loads(done.stdout)
    assert set(said["final"]["total_tokens"]) == {"gpt-4", "new"}
    assert 0 < said["final"]["q50"] <= said["final"]["q90"]
    assert 0 < said["final"]["p_tool"] < 1
    assert len(said["moved_by"]) == 8


def test_predict_obeys_the_limit_and_the_lack_of_tools() -> None:
    pytest.importorskip("lightgbm")
    final = json.loads(call("predict", "Tell all", "--max-tokens", "3", "--json").stdout)["final"]
    assert final["q90"] <= 3
    assert final["p_tool"] == 0


def test_predict_shows_what_the_fleet_has_seen_of_such_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.setitem(ENV, "MAESTROCTL_HOME", str(tmp_path))
    asked = ["predict", "x", "-m", "small", "--workflow", "shop", "--role", "agent"]
    before = json.loads(call(*asked, "--json").stdout)
    assert before["history"] == []
    state, key = OnlineState(), StageKey("shop", "agent", "plan", "small")
    for tokens in range(700, 800):
        state.observe(key, {}, state.calibrate(key, {}), Observation(tokens))
    head = {"version": STATE_VERSION, "observed": state.observed}
    rows = [MetaRow(f"online/{n}", json.dumps(g)) for n, g in state.take_changes(99).items()]
    with Store.open(f"sqlite:///{tmp_path}/state.db") as store:
        store.commit([*rows, MetaRow("online/", json.dumps(head))])
    here, elsewhere = (
        json.loads(call(*asked, "--step", step, "--json").stdout) for step in ("plan", "other")
    )
    assert [seen["group"] for seen in here["history"]] == ["step", "role", "model", "fleet"]
    assert [seen["group"] for seen in elsewhere["history"]] == ["role", "model", "fleet"]
    assert here["history"][0]["stages"] == 100
    assert here["history"][0]["q50"] == pytest.approx(750, abs=2)
    assert here["final"]["q50"] > 2 * before["final"]["q50"], "it counts, as it does for `serve`"
    text = call(*asked, "--step", "plan").stdout
    assert "workflow, role and step, this model" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_state_that_is_named_must_be_there(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    missing = f"sqlite:///{tmp_path}/none.db"
    assert isinstance(call("predict", "x", "--state", missing).exception, StoreError)
    assert not list(tmp_path.iterdir())


def test_tables_fit_80_columns() -> None:
    pytest.importorskip("lightgbm")
    text = call("predict", "x", "-m", "a-very/long-" + "name-" * 20, "--workflow", "w" * 90).stdout
    assert "what moved the trained model" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_damaged_artifact_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    path = tmp_path / "a.mpred"
    path.write_bytes(b"damaged")
    for args in (["predict", "x"], ["evaluate", "--stages", str(tmp_path)]):
        assert isinstance(call(*args, "--artifact", str(path)).exception, PredictorError)


@pytest.mark.parametrize(
    "args",
    [
        ["predict", "x"],
        ["train", "--stages", "a", "--out", "b"],
        ["evaluate", "--stages", "a"],
        ["predictor", "add-model", "new", "--outcomes", "a", "--out", "b"],
    ],
)
def test_without_the_extra_the_install_command_is_shown(
    args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_extra, "find_spec", lambda _: None)
    error = call(*args).exception
    assert isinstance(error, PredictorError)
    assert error.hint == "pip install 'maestroctl[predict]'"
    assert exit_code_of(error) is ExitCode.FAILED


def test_a_model_is_added_and_the_artifact_with_it_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    outcomes, out = tmp_path / "o.jsonl", tmp_path / "sub" / "own.mpred"
    lines = [
        {"question_text": f"add {k} and 2" if k % 2 else f"prove lemma {k}", "correct": k % 2}
        for k in range(60)
    ]
    outcomes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ["predictor", "add-model", "mine", "--outcomes", str(outcomes), "--out", str(out)]
    done = json.loads(call(*args, "--json").stdout)
    assert done["held_out"]["brier"] < done["held_out"]["brier_base_rate"]
    asked = call(
        "predict", "add 9 and 2", "-m", "mine", "-m", "x", "--artifact", str(out), "--json"
    )
    assert json.loads(asked.stdout)["final"]["confidence"]["mine"] > 0.7
    text = "\n".join(addition_lines(done))
    assert "mine added, right in 50.0% of 60 outcomes" in text
    assert f'[predictor] artifact = "{out}"' in text
    error = call(*args, "--artifact", str(out)).exception
    assert isinstance(error, ConfigError)
    assert "knows 'mine' already" in str(error)


def test_status_is_a_table_or_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "get_once", lambda *_: STATUS)
    assert json.loads(call("predictor", "status", "--json").stdout) == STATUS
    text = call("predictor", "status").stdout
    assert "median 1.5, p99 –" in text
    assert max(map(len, text.splitlines())) <= 80


def test_reset_sends_only_the_names_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    def post(_: str | None, path: str, body: Any) -> Any:
        sent.append((path, body))
        return {"cells_reset": 4}

    monkeypatch.setattr(api, "post_once", post)
    assert call("predictor", "reset", "--role", "coder").stdout == "4 cells reset\n"
    assert call("predictor", "reset").exit_code == 0
    assert call("predictor", "reset", "--refitted").exit_code == 0
    assert [path for path, _ in sent] == ["/api/predictor/reset"] * 3
    assert [body for _, body in sent] == [{"role": "coder"}, {}, {"refitted": True}]
