"""The report has every figure, on any folder, and nothing is judged on its own task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from typer.testing import CliRunner

from maestroctl.cli.main import app as command_line
from maestroctl.errors import ConfigError
from maestroctl.predict import evaluate, train
from maestroctl.predict.artifact import load_artifact, read_about
from maestroctl.predict.artifact_facts import read_facts
from maestroctl.predict.gbm import BoolArray
from maestroctl.predict.learning_curve import group_sources
from maestroctl.predict.metrics import bootstrap_interval, tool_metrics
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.traces import TraceJob, load_trace_jobs
from maestroctl.predict.train import TrainConfig
from tests.unit.predict.conftest import make_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources; some labels are unknown."""
    path = tmp_path_factory.mktemp("stages")
    for app, count in (("shop", 40), ("bank", 25)):
        rows = [row for number in range(count) for row in make_rows(number, app=app)]
        rows[3]["output_tokens"] = None
        rows[5]["tool_call"] = None
        rows[6]["model"] = None
        rows[7]["prompt_tokens"] = None
        text = "".join(json.dumps(row) + "\n" for row in rows)
        packed = zstandard.ZstdCompressor().compress(text.encode())
        (path / f"stages_made_{app}.jsonl.zst").write_bytes(packed)
    return path


def test_the_report_holds_every_figure(folder: Path, config: TrainConfig) -> None:
    report = evaluate.evaluate_jobs(
        load_trace_jobs(folder),
        config=config,
        num_folds=2,
        online=True,
        with_baselines=True,
        intervals=True,
        latency_stages=10,
    )
    json.dumps(report, allow_nan=False)
    assert {"mae", "rmse", "r2", "r2_log"} <= set(report["length"])
    assert {"f1", "accuracy", "log_loss", "brier", "ece"} <= set(report["tool_intent"])
    assert {"kendall_tau", "kendall_tau_admission", "mae"} <= set(report["total"])
    assert 0 < report["coverage"]["q90"] <= 1
    assert set(report["per_app"]) == {"shop", "bank"}
    assert {"median", "p99"} <= set(report["latency_ms"])
    assert set(report["learning_curve"]) == {"shop", "bank"}
    assert {"jobs", "mae", "coverage"} <= set(report["learning_curve"]["shop"][0])
    assert {"linear", "median", "magnus", "magnus_log", "bert_mlp", "mlp_tool"} == set(
        report["baselines"]
    )
    assert {
        "length.mae", "tool_intent.f1", "tool_intent.ece", "total.kendall_tau",
        "baselines.magnus.mae", "per_app.shop.length.mae",
    } <= set(report["intervals"])  # fmt: skip
    assert report["tool_intent"]["rows"] < report["length"]["rows"]


def test_cross_validation_predicts_every_stage_from_other_tasks(
    jobs: list[TraceJob], config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on: list[set[str]] = []
    judged: list[set[str]] = []
    real_train, real_tell = train.train_model, evaluate.tell

    def spy_train(train_jobs: list[TraceJob], *args: object) -> PredictorModel:
        trained_on.append({job.task for job in train_jobs})
        return real_train(train_jobs, *args)  # type: ignore[arg-type]

    def spy_tell(model: PredictorModel, table: object, told: object, rows: BoolArray) -> None:
        judged.append({jobs[n].task for n in table.job[rows]})  # type: ignore[attr-defined]
        real_tell(model, table, told, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate, "train_model", spy_train)
    monkeypatch.setattr(evaluate, "tell", spy_tell)
    _, told = evaluate.cross_validate(jobs, config, num_folds=3)
    assert not np.isnan(told.q50).any()
    for learned, asked in zip(trained_on, judged, strict=True):
        assert not learned & asked


def test_an_artifact_is_never_judged_on_tasks_it_was_trained_on(
    jobs: list[TraceJob], model: PredictorModel
) -> None:
    with pytest.raises(ConfigError, match="every task"):
        evaluate.evaluate_artifact(jobs, model)


def test_train_and_evaluate_commands(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.mpred"
    argv = ["train", "--stages", str(folder), "--exclude", "bank", "--out", str(out), "--json"]
    assert json.loads(CliRunner().invoke(command_line, argv).stdout)["sources"] == ["made_shop"]
    assert read_about(out)["about"]["sources"] == ["made_shop"]
    assert load_artifact(out).about["jobs"] == 40
    argv = ["evaluate", "--stages", str(folder), "--artifact", str(out), "--latency-stages", "0"]
    report = json.loads(CliRunner().invoke(command_line, [*argv, "--json"]).stdout)
    assert report["trained_jobs_left_out"] == 40
    assert report["protocol"].startswith("artifact")
    assert set(report["per_app"]) == {"bank"}
    table = CliRunner(env={"COLUMNS": "80"}).invoke(command_line, argv).stdout
    assert "bank" in table
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_folder_without_traces_is_one_readable_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(
        command_line, ["evaluate", "--stages", str(tmp_path / name), "--json"]
    )
    assert isinstance(done.exception, ConfigError)
    assert "stage trace" in str(done.exception)


def test_an_unknown_name_to_exclude_is_refused_with_the_names_there_are(folder: Path) -> None:
    with pytest.raises(ConfigError, match="'bnak'") as caught:
        train.load_jobs(folder, ["bnak"])
    assert caught.value.hint is not None
    assert "bank" in caught.value.hint


def test_excluding_everything_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no job is left"):
        train.load_jobs(folder, ["bank", "shop"])


def test_licensed_only_leaves_out_the_source_that_may_not_ship(tmp_path: Path) -> None:
    rows = [row for number in range(20) for row in make_rows(number)]
    rows += [
        row | {"source": "mast_chatdev"} for n in range(5) for row in make_rows(n, app="chatdev")
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "stages_x.jsonl").write_text(text)
    run = train.TrainingRun(stages=tmp_path, out=tmp_path / "o", licensed_only=True)
    assert train.run_training(run)["sources"] == ["made_shop"]
    assert read_facts(run.out).trained_at is not None


def test_a_missing_column_is_named_with_file_and_line(tmp_path: Path) -> None:
    rows = make_rows(0)
    del rows[1]["app"]
    (tmp_path / "stages_x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ConfigError, match="no app") as caught:
        load_trace_jobs(tmp_path)
    assert caught.value.line == 2


def test_columns_that_may_be_missing_are_unknown(tmp_path: Path) -> None:
    keep = ("source", "app", "job_id", "task_id", "stage_index")
    rows = [{name: row[name] for name in keep} for row in make_rows(0)]
    (tmp_path / "stages_x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (job,) = load_trace_jobs(tmp_path)
    assert [stage.output_tokens for stage in job.stages] == [None] * 5


def test_a_file_that_is_not_zstandard_is_named(tmp_path: Path) -> None:
    (tmp_path / "stages_x.jsonl.zst").write_bytes(b"no zstandard frame")
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        load_trace_jobs(tmp_path)


def test_a_broken_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "stages_x.jsonl").write_text(json.dumps(make_rows(0)[0]) + "\n{oops\n")
    with pytest.raises(ConfigError) as caught:
        load_trace_jobs(tmp_path)
    assert caught.value.line == 2


def test_nothing_that_ships_is_trained_on_the_licensed_source(folder: Path) -> None:
    assert train.NOT_SHIPPABLE == ("mast_chatdev",)
    assert load_trace_jobs(folder, without=["made_shop"])[0].source == "made_bank"


def test_sources_that_share_an_application_stay_in_one_group(jobs: list[TraceJob]) -> None:
    from dataclasses import replace

    shared = [*jobs, replace(jobs[0], source="third"), replace(jobs[0], source="fourth", app="x")]
    groups = group_sources(shared)
    assert any({"made_shop", "third"} <= group for group in groups)
    assert sum(len(group) for group in groups) == 4


def test_tool_metrics_on_perfect_and_on_no_rows() -> None:
    called = np.array([1.0, 0.0, 1.0])
    assert tool_metrics(called, called)["f1"] == 1.0
    assert tool_metrics(called, called)["ece"] == 0.0
    assert tool_metrics(np.array([]), np.array([]))["log_loss"] is None


def test_the_bootstrap_resamples_groups_not_rows() -> None:
    values = np.array([0.0] * 50 + [1.0] * 50)
    groups = np.array(["a"] * 50 + ["b"] * 50)
    interval = bootstrap_interval(groups, lambda rows: float(values[rows].mean()))
    assert interval == (0.0, 1.0)
