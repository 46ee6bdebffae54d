"""The predictor benchmark, small and on stub engines: both sides asked, every kind seen."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from maestroctl.testing.bench import predictor
from maestroctl.testing.bench.predictor_load import Asked, Fleet, Measured, make_requests
from maestroctl.testing.bench.predictor_report import (
    added_s,
    make_figures,
    make_sections,
    share_of_latency,
)


async def test_the_predictor_benchmark_measures_both_ways_of_asking(tmp_path: Path) -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    seen = await predictor.measure(Fleet(tmp_path, tmp_path / "none", "stub", ""), 6, 2)
    after = {process.pid for process in psutil.Process().children(recursive=True)}
    assert after <= before
    figures = make_figures(seen)
    kinds = figures["kinds"]
    assert (kinds["idle"]["waited"], kinds["idle"]["went_on"]) == (0, 12)
    assert (kinds["choice"]["waited"], kinds["choice"]["went_on"]) == (12, 0)
    assert kinds["choice4"]["waited"] == 12
    for kind in ("choice", "choice4"):
        assert kinds[kind]["served"]["with"] == kinds[kind]["served"]["without"]
    assert kinds["queue"]["waited"] > 0
    assert kinds["queue"]["waited"] + kinds["queue"]["went_on"] == 12
    assert kinds["idle"]["share_of_latency"] == 0 < kinds["idle"]["beside_share"]
    assert 0 < figures["share_of_latency"] < 0.5
    assert figures["predict_ms"]["median"] > 0
    assert figures["predictions"] > 0
    assert not any(b.asked.waited or b.asked.beside for b in seen.blocks if not b.enabled)
    assert len(make_sections(seen)) == 5


def test_the_share_is_what_was_waited_over_what_requests_took() -> None:
    seen = Measured(2, 1)
    seen.add(Measured.Block("idle", True, 0, (1.0, 3.0), Asked(0.2, 1, 9.0, 1)))
    seen.add(Measured.Block("idle", False, 0, (1.0, 2.0), Asked()))
    assert share_of_latency(seen, ["idle"]) == pytest.approx(0.05)
    assert added_s(seen, "idle") == pytest.approx([0.5])


def test_both_sides_get_the_same_requests_and_each_round_others() -> None:
    first = make_requests("idle", 0, 8)
    assert first == make_requests("idle", 0, 8)
    assert first[0].prompt != make_requests("idle", 1, 8)[0].prompt
    words = sorted(len(request.prompt.split()) for request in first)
    assert (words[0], words[-1]) == (20, 1500)
    assert all(16 <= request.max_tokens <= 64 for request in first)


def test_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        predictor.main(["--help"])
    assert caught.value.code == 0
    assert "--engine" in capsys.readouterr().out
