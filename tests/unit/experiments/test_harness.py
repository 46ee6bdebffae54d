"""Intervals, common random numbers, and what is written."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import signal
from pathlib import Path

import pytest

from maestroctl.errors import ConfigError
from maestroctl.experiments import frontier, overcommit, slo_sweep
from maestroctl.experiments.catalogue import EXPERIMENTS, run_experiment
from maestroctl.experiments.harness import (
    DEFAULT,
    FULL,
    QUICK,
    Plot,
    Runner,
    Scale,
    estimate,
    paired,
    with_policy,
)
from maestroctl.experiments.output import document, headline_lines, markdown, write
from maestroctl.experiments.setup import mixed_simulation
from maestroctl.experiments.slo_calibration import SetUp
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.workload import JobSource, make_plans

TINY = Scale(jobs=40, warmup=4, seeds=2)


def _quiet(_line: str) -> None:
    """No progress."""


def test_one_value_has_no_interval_and_several_have_student_s() -> None:
    assert estimate([3.0]).half_width is None
    several = estimate([1.0, 2.0, 3.0])
    assert several.mean == 2.0
    assert several.half_width == pytest.approx(4.303 / 3**0.5, rel=1e-3)


def test_paired_differences_are_narrow_where_both_move_together() -> None:
    first, second = [10.0, 20.0, 30.0], [9.0, 19.0, 29.0]
    assert paired(first, second).half_width == 0.0
    assert estimate(first).half_width is not None


def test_policies_are_compared_on_the_same_jobs() -> None:
    spec = _spec(0.5)
    other = with_policy(spec, ordering="other")
    assert _jobs(spec) == _jobs(other)


def test_a_larger_batch_ratio_leaves_the_other_jobs_as_they_were() -> None:
    few, many = _jobs(_spec(0.2)), _jobs(_spec(0.8))
    same = sum(a == b for a, b in zip(few, many, strict=True))
    assert [a.arrival_s for a in few] == [b.arrival_s for b in many]
    assert 0.2 * len(few) < same < 0.7 * len(few)


def _spec(ratio: float) -> SimulationSpec:
    return mixed_simulation(
        JobSource(), Scale(100, 0), ordering="fcfs", seed=1, nodes=2, rate_rps=1.0,
        batch_ratio=ratio, deadline_factor=4.0,
    )  # fmt: skip


def _jobs(spec: SimulationSpec) -> list[object]:
    return list(make_plans(spec.workload, spec.source, spec.world.profiles))


def test_table_v_is_reproduced_within_two_percent() -> None:
    experiment = overcommit.run(TINY, JobSource(), Runner(_quiet))
    assert experiment.headline["largest_row_difference"] < 0.02
    assert experiment.headline["overcommit"] == pytest.approx(3.05, abs=0.01)
    assert experiment.headline["reservation_saved"] == pytest.approx(0.672, abs=0.001)


def test_what_sharing_pages_admits_is_told_apart_from_what_sleeping_does() -> None:
    told = overcommit.run(TINY, JobSource(), Runner(_quiet)).headline
    pages, asleep = (told[f"tokens_ratio_{case}_by_busy"] for case in ("same_awake", "idle_asleep"))
    assert pages["4"] == asleep["4"], "nobody is idle"
    mean = sum(pages[n].mean for n in "1234") / 4
    assert told["tokens_ratio"].mean == pytest.approx(mean)
    assert all(1.0 < pages[n].mean < asleep[n].mean for n in ("1", "2", "3"))


def test_an_unknown_experiment_names_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        run_experiment("slo_swep", TINY, None, _quiet)
    assert caught.value.hint == "did you mean 'slo_sweep'?"


@pytest.fixture
def few_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the large grids; and the set-up of the sweep cannot be found on forty jobs."""
    monkeypatch.setattr(frontier, "DEFAULT_CELLS", (("code", "qwen 7+3"),))
    monkeypatch.setattr(frontier, "RATES", (8.0,))
    setup = SetUp("least_loaded", 2, 5.0, 0.5, 0.1)
    monkeypatch.setattr(slo_sweep, "calibrate", lambda *_: setup)
    monkeypatch.setattr(slo_sweep, "RATES", (0.4, 2.0))
    monkeypatch.setattr(slo_sweep, "RATIOS", (0.8,))


@pytest.mark.usefixtures("few_cells")
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_writes_a_report_and_has_what_its_picture_shows(
    name: str, tmp_path: Path
) -> None:
    experiment = run_experiment(name, TINY, None, _quiet)
    paths = write(experiment, tmp_path)
    assert json.loads(paths[0].read_text())["headline"] == document(experiment)["headline"]
    assert paths[1].read_text() == markdown(experiment)
    assert experiment.headline
    assert experiment.rows
    for row in experiment.rows:
        assert set(experiment.columns) <= set(row)
    if isinstance(plot := experiment.plot, Plot):
        shown = {plot.x, plot.series or plot.x, plot.facet or plot.x, *plot.panels}
        assert shown <= set(experiment.columns)
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    assert [path.suffix for path in paths] == [".json", ".md"] + [".png"] * has_matplotlib


def test_a_grid_finds_the_same_on_one_process_and_on_several() -> None:
    cells, seeds = [("a", 1), ("b", 2), ("c", 3)], range(1, 4)

    def weigh(cell: tuple[str, int], seed: int) -> int:
        return cell[1] * 10 + seed

    alone, shared = (Runner(_quiet, workers).grid(weigh, cells, seeds) for workers in (1, 2))
    assert alone == shared
    assert alone["b", 2] == [21, 22, 23]


def test_workers_end_whatever_handler_of_sigterm_they_inherit() -> None:
    """An event loop leaves one that does nothing: a worker was waited for without end."""

    def fail(cell: int, seed: int) -> int:
        raise ValueError(cell + seed)

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert Runner(_quiet, 2).grid(lambda cell, seed: cell + seed, [1, 2], [3])[2] == [5]
        with pytest.raises(ValueError, match="4"):
            Runner(_quiet, 2).grid(fail, [1, 1], [3])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not multiprocessing.active_children()


def test_a_headline_is_listed_figure_by_figure() -> None:
    headline = {"gain": 2.0, "by rate": {"1": {"ours": 3.0}, "2": None}}
    assert headline_lines(headline) == [
        ("gain", "2"),
        ("by rate, 1, ours", "3"),
        ("by rate, 2", "–"),
    ]


def test_the_headline_compares_ours_with_edf_and_with_the_best_oracle() -> None:
    def figures(slo: float, delay: float) -> list[dict[str, object]]:
        return [
            {
                "all": {"slo_attainment": slo + d},
                "interactive": {
                    "queue_s": {"mean": delay},
                    "ttft_s": {"mean": delay + 2.0},
                    "prompt_tokens": 0,
                },
            }
            for d in (0.0, 0.02)
        ]

    found = slo_sweep.headline(
        {
            "edf": figures(0.5, 10.0),
            "workflow_slo": figures(0.73, 1.0),
            "oracle_srtf": figures(0.70, 1.0),
            "oracle_slo": figures(0.75, 1.0),
        }
    )
    assert found["gain_over_edf_pp"] == pytest.approx(23.0)
    assert found["best_oracle"] == "oracle_slo"
    assert found["share_of_oracle_gain"] == pytest.approx(23 / 25)
    assert found["queue_reduction"] == pytest.approx(0.9)
    assert found["ttft_reduction"] == pytest.approx(0.75)
    alone_s = 2.0 - 0.001 - slo_sweep.qwen3_profile(slo_sweep.MODEL).iteration.c0_s
    assert found["delay_reduction"] == pytest.approx(1 - (1 + alone_s) / (10 + alone_s))


def test_a_capped_experiment_grows_with_the_full_size_and_no_further_below() -> None:
    assert [size.part(300) for size in (QUICK, DEFAULT, FULL)] == [300, 300, 2250]
    assert Scale(jobs=20, warmup=0).part(300) == 20


def test_the_headline_cell_alone_is_larger() -> None:
    assert DEFAULT.at_headline().jobs == 3 * DEFAULT.jobs
    assert QUICK.at_headline() == QUICK
