"""One command measures every section once and writes the page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from maestroctl.errors import ArtifactMissing
from maestroctl.predict import report, role_regressors, train
from maestroctl.predict.kept_sections import Kept, inputs_digest
from maestroctl.predict.latency import NUM_CANDIDATES, _stages_to_ask
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.output_length import LengthFigures
from maestroctl.predict.report_page import (
    _when_tools_matter,
    _why_sketch,
    _worth,
    render_calibration_svg,
)
from maestroctl.predict.stage_input import StageInput
from tests.unit.predict.conftest import make_jobs, make_rows

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Traces of two sources and one correctness table."""
    from pyarrow import parquet

    stages, routing = tmp_path / "stages", tmp_path / "routing"
    stages.mkdir()
    routing.mkdir()
    for app in ("shop", "bank"):
        rows = [row for number in range(24) for row in make_rows(number, app=app)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (stages / f"stages_made_{app}.jsonl").write_text(text)
    questions = [f"what is {k} and {k % 7}" for k in range(60)]
    table = pyarrow.table(
        {
            "dataset": ["d"] * 120,
            "question_text": questions * 2,
            "model": ["a"] * 60 + ["b"] * 60,
            "correct": [k % 2 for k in range(60)] + [int(k % 3 > 0) for k in range(60)],
        }
    )
    parquet.write_table(table, routing / "d.parquet")
    return stages, routing


def test_the_page_is_written_and_nothing_is_measured_twice(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_ENCODERS", ("none", "sketch"))
    monkeypatch.setattr(report, "_ENCODER_SAMPLE", 1)
    work, out = tmp_path / "work", tmp_path / "prediction.md"

    def write() -> None:
        config = train.TrainConfig()
        report.write_report(*folders, work, out, config=config, say=lambda _: None)

    write()
    page = out.read_text()
    for heading in ("Output length", "Tool intent", "Remaining tokens", "nobody has seen"):
        assert heading in page
    assert "Table III" in page
    assert (tmp_path / "prediction-calibration.svg").read_text().startswith("<svg")
    kept = sorted(path.name for path in work.iterdir())
    assert kept == [
        "ablations.json", "encoder-none.json", "encoder-sketch.json", "evaluation.json",
        "online.json", "routing.json", "shippable.json",
    ]  # fmt: skip
    monkeypatch.setattr(report, "measure_routing", lambda _: pytest.fail("measured twice"))
    write()
    assert out.read_text() == page


def test_a_section_is_measured_again_when_code_data_or_settings_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("1")
    first = inputs_digest([data], "settings")
    kept = Kept(tmp_path, first)
    assert kept.get("a", lambda: {"x": 1}, print) == {"x": 1}
    assert kept.get("a", lambda: pytest.fail("measured twice"), print) == {"x": 1}
    (data / "rows").write_text("2")
    second = inputs_digest([data], "settings")
    assert len({first, second, inputs_digest([data], "other")}) == 3
    assert Kept(tmp_path, second).get("a", lambda: {"x": 2}, print) == {"x": 2}


def test_an_encoder_that_cannot_be_loaded_is_said_so_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str, *_: object) -> None:
        raise ArtifactMissing(f"no weights of {name}")

    monkeypatch.setattr(report, "_ENCODERS", ("minilm",))
    monkeypatch.setattr(report, "_measure_encoder", absent)
    kept = Kept(tmp_path, "digest")
    told = report.measure_encoders([], train.TrainConfig(), print, kept)
    assert told == {"minilm": {"missing": "no weights of minilm"}}
    assert not kept.holds("encoder-minilm")


@pytest.mark.parametrize("oracle", [5.0, 9.9])
def test_the_page_names_the_applications_where_the_tool_flag_matters(oracle: float) -> None:
    per_app = {
        "no_tool_intent": {"talks": 10.0, "silent": 0.0},
        "full": {"talks": 9.5, "silent": 0.0},
        "oracle_tool": {"talks": oracle, "silent": 0.0},
    }
    text = _when_tools_matter({name: {"per_app": value} for name, value in per_app.items()})
    assert ("| talks | 10.0 | 50% | 5% |" in text) == (oracle == 5.0)
    assert "silent" not in text


_FIGURES = {"mae": 5.0, "r2": 0.5, "r2_log": 0.8, "log_loss": 0.3, "tau": 0.7}


@pytest.mark.parametrize(("mae", "verdict"), [(4.0, "raises"), (6.0, "lowers")])
def test_what_an_ingredient_is_worth_is_said_from_the_table(mae: float, verdict: str) -> None:
    told = _worth({"full": _FIGURES, "x": _FIGURES | {"mae": mae, "r2": 0.4}}, "x", "it")
    assert f"it {verdict} the MAE of the length by 1.00 tokens" in told
    assert "R² by +0.100" in told


@pytest.mark.parametrize("key", ["mae", "log_loss"])
def test_why_an_encoder_is_the_default_is_said_from_the_table(key: str) -> None:
    told = _why_sketch({"none": _FIGURES, "sketch": _FIGURES | {key: 0.1}})
    assert "it is the best here in" in told
    worse = _why_sketch({"none": _FIGURES, "sketch": _FIGURES | {key: 9.0}})
    assert "and not in" in worse
    assert "(`none`)" in worse


def test_large_groups_get_regressors_of_their_own_and_small_ones_stay_pooled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(role_regressors, "MIN_ROWS", 50)
    stages = [StageInput(candidates=("m",), role=r) for r in ["big"] * 80 + ["small"] * 20]
    rows = np.random.default_rng(0).random((100, 4), dtype=np.float32)
    tokens = np.array([7.0] * 80 + [900.0] * 20)
    pooled = LengthFigures(*(np.full(100, 50.0) for _ in range(4)))
    told = role_regressors.predict_per_role(
        pooled, (rows, tokens, stages), (rows, stages), categories=[]
    )
    for head in (told.paper, told.mean, told.q50):
        assert np.allclose(head[:80], 7.0, atol=0.1)
        assert (head[80:] == 50.0).all()
    assert (told.q90 == 50.0).all()


def test_latency_is_asked_of_all_applications(model: PredictorModel) -> None:
    jobs = [*make_jobs(60), *make_jobs(60, app="bank")]
    asked = _stages_to_ask(model, jobs, 100)
    assert asked == _stages_to_ask(model, jobs, 100)
    assert {stage.workflow for stage, _ in asked} == {"shop", "bank"}
    assert all(len(stage.candidates) == NUM_CANDIDATES for stage, _ in asked)


def test_a_calibration_plot_without_bins_is_still_a_plot() -> None:
    assert render_calibration_svg([]).endswith("</svg>\n")
