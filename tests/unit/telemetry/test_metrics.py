"""The formulas of docs/metrics.md, figure by figure."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from maestroctl.domain.ids import ClusterName, DeviceName, NodeName
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.snapshot import DeviceSnapshot, NodeSnapshot
from maestroctl.domain.stage import ServiceClass
from maestroctl.telemetry import metrics


@dataclass(frozen=True)
class Attempt:
    job_id: str = "j"
    model: str = "m"
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    outcome: Outcome | None = Outcome.FINISHED
    arrived_at: float = 10.0
    dispatched_at: float | None = 12.0
    first_byte_at: float | None = 13.0
    ended_at: float | None = 15.0
    prompt_tokens: int | None = 100
    output_tokens: int | None = 5
    cached_tokens: int | None = 0
    activation: str = ""
    activation_s: float = 0.0
    streamed: bool = True


@dataclass(frozen=True)
class Job:
    job_id: str = "j"
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    status: JobStatus = JobStatus.FINISHED
    submitted_at: float = 100.0
    deadline_s: float | None = 10.0
    finished_at: float | None = 105.0


def test_times_of_one_stage() -> None:
    attempt = Attempt()
    assert metrics.queue_wait_s(attempt) == 2.0
    assert metrics.ttft_s(attempt) == 3.0
    assert metrics.tpot_s(attempt) == 0.5
    assert metrics.latency_s(attempt) == 5.0


def test_what_did_not_happen_has_no_figure() -> None:
    attempt = Attempt(dispatched_at=None, first_byte_at=None, ended_at=None)
    figures = (metrics.queue_wait_s, metrics.ttft_s, metrics.tpot_s, metrics.latency_s)
    assert [figure(attempt) for figure in figures] == [None] * 4


@pytest.mark.parametrize(
    "attempt",
    [
        Attempt(output_tokens=1),
        Attempt(output_tokens=None),
        Attempt(outcome=Outcome.FAILED),
        Attempt(outcome=None),
        Attempt(streamed=False),
    ],
    ids=["one token", "unknown count", "broken off", "open", "not streamed"],
)
def test_time_per_token_needs_a_whole_stream_of_two_tokens(attempt: Attempt) -> None:
    assert metrics.tpot_s(attempt) is None


def test_a_clock_set_back_gives_no_negative_time() -> None:
    attempt = Attempt(arrived_at=20.0)
    assert metrics.ttft_s(attempt) == 0.0
    assert metrics.queue_wait_s(attempt) == 0.0
    assert metrics.latency_s(attempt) == 0.0


@pytest.mark.parametrize(
    ("job", "now", "met"),
    [
        (Job(), 200.0, True),
        (Job(finished_at=110.0), 200.0, True),
        (Job(finished_at=110.1), 200.0, False),
        (Job(status=JobStatus.FAILED), 200.0, False),
        (Job(status=JobStatus.INTERRUPTED), 200.0, False),
        (Job(status=JobStatus.CANCELLED), 200.0, None),
        (Job(deadline_s=None), 200.0, None),
        (Job(status=JobStatus.RUNNING, finished_at=None), 110.0, None),
        (Job(status=JobStatus.RUNNING, finished_at=None), 110.1, False),
    ],
)
def test_deadline_is_met_missed_or_undecided(job: Job, now: float, met: bool | None) -> None:
    assert metrics.met_deadline(job, now) is met


def test_attainment_is_the_part_of_the_decided_jobs() -> None:
    jobs = [Job(), Job(), Job(finished_at=111.0), Job(deadline_s=None)]
    assert metrics.slo_attainment(jobs, 200.0) == pytest.approx(2 / 3)
    assert metrics.slo_attainment([Job(deadline_s=None)], 200.0) is None


@pytest.mark.parametrize(
    ("q", "value"), [(0.0, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.9, 9), (0.99, 10), (1.0, 10)]
)
def test_quantile_is_a_value_that_was_seen(q: float, value: float) -> None:
    assert metrics.quantile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], q) == value


def test_quantile_of_nothing_is_nothing() -> None:
    assert metrics.quantile([], 0.5) is None
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        metrics.quantile([1.0], 1.5)


def snapshot(as_of_s: float, *booked: int, host: int = 0) -> NodeSnapshot:
    devices = [
        DeviceSnapshot(DeviceName(f"cuda:{number}"), 1000, held)
        for number, held in enumerate(booked)
    ]
    devices.append(DeviceSnapshot(DeviceName("host"), 1000, host))
    return NodeSnapshot(
        NodeName("n"), ClusterName("c"), as_of_s, 1, 1, tuple(devices), engines=(), profiles=()
    )


def test_reserved_bytes_are_the_devices_and_not_the_host() -> None:
    assert metrics.reserved_bytes(snapshot(0.0, 300, 400, host=999)) == 700


def test_mean_reserved_bytes_weighs_by_time() -> None:
    seen = [snapshot(0.0, 100), snapshot(9.0, 1000), snapshot(10.0, 5)]
    assert metrics.mean_reserved_bytes(seen) == pytest.approx((900 + 1000) / 10)
    assert metrics.mean_reserved_bytes(seen[:1]) is None
    assert metrics.mean_reserved_bytes([seen[0], seen[0]]) is None
