"""One command measures every section once and writes the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maestroctl.predict import report, train
from maestroctl.predict.report_page import render_calibration_svg
from tests.unit.predict.conftest import make_rows

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
        "ablations.json", "encoders.json", "evaluation.json", "online.json", "routing.json",
        "shippable.json",
    ]  # fmt: skip
    monkeypatch.setattr(report, "measure_routing", lambda _: pytest.fail("measured twice"))
    write()
    assert out.read_text() == page


def test_a_calibration_plot_without_bins_is_still_a_plot() -> None:
    assert render_calibration_svg([]).endswith("</svg>\n")
