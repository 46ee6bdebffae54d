"""`train --from-history`: what a fleet has run becomes a model of its own, if that is better."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("lightgbm", reason="the predict extra is not installed")

from maestroctl.cli.main import app
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.stage import ServiceClass, StageDescriptor
from maestroctl.errors import StoreError
from maestroctl.predict.artifact import load_artifact
from maestroctl.store.database import Store
from maestroctl.store.rows import JobRow, ObservationRow, Row
from tests.support.history import attempt_row
from tests.unit.predict.test_own_history import _row, _stage


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def history(num_jobs: int, told: float) -> list[Row]:
    """Jobs whose agents always say about 30 tokens and whose users say about 300."""
    rng, rows = random.Random(1), list[Row]()
    for number in range(num_jobs):
        job, began = f"job-{number}", 100.0 * number
        status = JobStatus.FINISHED if number else JobStatus.RUNNING
        ended_at = began + 9 if number else None
        job_row = JobRow(
            job,
            began,
            "shop",
            service_class=ServiceClass.BATCH,
            status=status,
            finished_at=ended_at,
        )
        rows.append(job_row)
        for position in range(6):
            stage, at = _stage(job, position), began + position
            tokens = rng.randrange(25, 36) if position % 2 == 0 else rng.randrange(280, 321)
            rows += [attempt_row(stage, at), _row(stage, at + 0.5, tokens, told=told)]
    return rows


def state_of(tmp_path: Path, rows: list[Row]) -> str:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with Store.open(url) as store:
        store.commit(rows)
    return url


def test_a_better_model_is_written_where_serve_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAESTROCTL_HOME", str(tmp_path / "home"))
    state = state_of(tmp_path, history(60, told=2000.0))
    result = run("train", "--from-history", "--state", state, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert (report["better"], report["jobs"]) == (True, 59), "the open job is left out"
    written = tmp_path / "home" / "predictor" / "local.mpred"
    assert report["path"] == str(written)
    own = load_artifact(written, digest=report["digest"])
    agent = own.predict([_stage_input(0)])[0].figures["large"]
    user = own.predict([_stage_input(1)])[0].figures["large"]
    assert agent.q50 < 100 < user.q50


def _stage_input(position: int):  # type: ignore[no-untyped-def]
    from maestroctl.domain.stage_text import StageText
    from maestroctl.predict.history import JobHistory
    from maestroctl.predict.stage_input import build_stage_input

    return build_stage_input(_stage("new", position), StageText(), JobHistory())


def test_too_little_history_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a.mpred"
    state = state_of(tmp_path, history(3, told=2000.0))
    result = run("train", "--from-history", "--state", state, "--out", out)
    assert result.exit_code == 0
    assert "nothing written" in result.stdout
    assert not out.exists()


def test_a_model_that_is_no_better_is_not_written(tmp_path: Path) -> None:
    rows: list[Row] = []
    for row in history(60, told=0.0):
        if isinstance(row, ObservationRow):
            row = _row(_descriptor(row), row.at, row.output_tokens, told=float(row.output_tokens))
        rows.append(row)
    out = tmp_path / "a.mpred"
    state = state_of(tmp_path, rows)
    result = run("train", "--from-history", "--state", state, "--out", out, "--json")
    report = json.loads(result.stdout)
    assert (report["better"], report["jobs"]) == (False, 59)
    assert not out.exists()


def _descriptor(row: ObservationRow) -> StageDescriptor:
    seen = json.loads(row.features_json)
    return _stage(seen["job_id"], seen["position"])


def test_a_state_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    result = run("train", "--from-history", "--state", f"sqlite:///{tmp_path}/none.db")
    assert isinstance(result.exception, StoreError)


@pytest.mark.parametrize("args", [[], ["--stages", "x", "--from-history"], ["--stages", "x"]])
def test_one_source_and_a_place_to_write_must_be_named(args: list[str]) -> None:
    assert run("train", *args).exit_code == 2
