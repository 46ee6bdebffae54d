"""The load of bench-core keeps its queue and sends what a fleet sends; its report is true."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from maestroctl.domain.policy import PolicySpec
from maestroctl.testing.bench.core import growth, report
from maestroctl.testing.bench.core_load import CoreLoad

POLICY = PolicySpec(ordering="workflow_slo", routing="maestro")


@pytest.fixture(scope="module")
def played() -> tuple[CoreLoad, Counter[str]]:
    load = CoreLoad(POLICY, models=50)
    load.fill(300)
    kinds: Counter[str] = Counter()
    for event in load.events(700):
        kinds[type(event).__name__] += 1
        load.take(event)
    return load, kinds


def test_engines_stay_busy_and_stages_stay_queued(played: tuple[CoreLoad, Counter[str]]) -> None:
    core = played[0].core
    core.validate()
    assert core.num_queued > 200
    assert core.num_in_flight > 1000
    assert core.counters.stale < 50


def test_the_load_holds_every_kind_of_event(played: tuple[CoreLoad, Counter[str]]) -> None:
    kinds = played[1]
    assert kinds["StageEnded"] == kinds["StageStarted"] > 600
    for kind in ("StageArrived", "PredictionArrived", "NodeSnapshotReceived", "StageCancelled"):
        assert kinds[kind], kind
    assert kinds["StageRefused"]


def figures(queued: int, mean: float, p99: float = 0.5, worst: float = 5.0) -> dict[str, Any]:
    times = {"mean": mean, "median": mean, "p99": p99, "worst": worst}
    return {
        "queued": queued,
        "decision_ms": times,
        "processor_ms": times,
        "resident_mb": 200.0,
    }


def test_growth_is_judged_against_the_logarithm() -> None:
    found = growth([figures(1000, 0.1), figures(100_000, 0.2)])
    assert found["mean"] == pytest.approx(2.0)
    assert found["log_n"] == pytest.approx(5 / 3)


def test_a_missed_target_is_reported_as_missed() -> None:
    depths = [figures(1000, 0.1), figures(100_000, 0.2, p99=1.5)]
    document = report(depths, figures(100_000, 0.1, worst=30.0), POLICY)
    assert document["met"] == {"p99": False, "worst": False, "resident": True, "growth": False}
    fine = report([figures(1000, 0.1), figures(100_000, 0.15)], figures(100_000, 0.1), POLICY)
    assert all(fine["met"].values())
