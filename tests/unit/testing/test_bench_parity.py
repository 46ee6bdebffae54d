"""The trace, the simulated side and the report of `bench-parity`."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from maestroctl.domain.llm import IterationCost
from maestroctl.estimate.batch_time import estimate_batch_s
from maestroctl.testing.bench.parity_report import Outcome, make_figures, make_sections
from maestroctl.testing.bench.parity_sim import simulate
from maestroctl.testing.bench.parity_trace import ParityJob, capacity_rps, make_trace
from tests.unit.config.test_profile_file import SPEC, make_record

COST = IterationCost(c0_s=0.03, c1_s=0.001, c2_s=1e-6, cp_s=0.001)
RECORD = make_record(costs=replace(make_record().costs, iteration=COST))


def test_the_same_seed_gives_the_same_jobs_with_lengths_in_bounds() -> None:
    trace = make_trace(200, 2.0, 7)
    assert trace == make_trace(200, 2.0, 7)
    assert all(2 <= len(job.calls) <= 4 for job in trace)
    assert all(8 <= p <= 48 and 8 <= n <= 32 for job in trace for p, n in job.calls)
    assert 200 / trace[-1].arrival_s == pytest.approx(2.0, rel=0.2)


def test_a_lone_job_takes_its_calls_one_after_the_other() -> None:
    calls = ((20, 10), (30, 8))
    (latency,) = simulate([ParityJob(1.0, calls)], RECORD, SPEC)
    alone = sum(estimate_batch_s(COST, [call], 256)[0] for call in calls)
    assert latency == pytest.approx(alone, abs=0.01), "a round trip per call comes on top"


def test_at_the_engines_capacity_jobs_wait_and_at_a_tenth_they_do_not() -> None:
    rate = capacity_rps(replace(RECORD.costs, max_batch=16))
    slow, fast = (
        fmean(simulate(make_trace(100, rate * part, 7), RECORD, SPEC)) for part in (0.1, 1.2)
    )
    assert fast > 2 * slow


def outcome(live: list[list[float]], simulated: list[float]) -> Outcome:
    return Outcome(live, simulated, 0.07, True, "9 events", 0.1, 1.5)


def test_errors_are_relative_to_the_live_side() -> None:
    figures = make_figures(outcome([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [1.1, 2.2, 3.3]))
    assert figures["mean_latency_error"] == pytest.approx(0.1)
    assert figures["p95_latency_error"] == pytest.approx(0.1)
    assert not figures["p95_within_live_spread"]


def test_a_tail_among_the_live_ones_is_met_whatever_its_error() -> None:
    found = outcome([[1.0], [3.0]], [1.4])
    assert found.p95_error == pytest.approx(0.3)
    (section,) = make_sections(found)
    rows = {row.name: row for row in section.rows}
    assert rows["error of the p95"].met
    assert not rows["error of the mean"].met
