"""The report has every figure, on any folder, and nothing is judged on its own task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zstandard

from maestroctl.errors import ConfigError
from maestroctl.predict import evaluate, train
from maestroctl.predict.artifact import load_artifact, read_about
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
    assert {"linear", "median", "magnus", "bert_mlp", "mlp_tool"} == set(report["baselines"])
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


def test_train_and_evaluate_commands(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.mpred"
    argv = ["--stages", str(folder), "--without", "made_bank", "--out", str(out), "--json"]
    assert train.main(argv) == 0
    assert json.loads(capsys.readouterr().out)["sources"] == ["made_shop"]
    assert read_about(out)["about"]["sources"] == ["made_shop"]
    assert load_artifact(out).about["jobs"] == 40
    argv = ["--stages", str(folder), "--artifact", str(out), "--json", "--latency-stages", "0"]
    assert evaluate.main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["trained_jobs_left_out"] == 40
    assert set(report["per_app"]) == {"bank"}


def test_an_empty_folder_is_one_readable_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(["--stages", str(tmp_path), "--json"]) == 1
    assert "no trace file" in capsys.readouterr().err


def test_a_broken_row_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "stages_x.jsonl").write_text('{"job_id": 1}\n{oops\n')
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
