"""What ``/metrics`` says, what it must never say, and what it may cost."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import ClusterName, DeviceName, EngineId, ModelName, NodeName
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.snapshot import DeviceSnapshot, EngineSnapshot, NodeSnapshot
from maestroctl.gateway.gate import Gate
from maestroctl.gateway.status_api import gate_metrics
from maestroctl.telemetry.exposition import Load, Telemetry
from tests.unit.telemetry.test_metrics import Attempt, Job

DOC = Path(__file__).parents[3] / "docs" / "metrics.md"


@dataclass
class FakeJournal:
    lag_s: float = 0.25
    pending: int = 7
    dropped: Counter[str] = field(default_factory=lambda: Counter(DecisionRow=3))
    refused: Counter[str] = field(default_factory=lambda: Counter(JobRow=1))


def engine(number: int, model: str, status: EngineStatus) -> EngineSnapshot:
    return EngineSnapshot(
        EngineId(f"{model}@n#{number}"),
        ModelName(model),
        status,
        ResidencyTier.DEVICE,
        *(1, 4, 2, 0, 0.0, 100, 10, 500, 200),
    )


SNAPSHOT = NodeSnapshot(
    node=NodeName("n"),
    cluster=ClusterName("c"),
    as_of_s=1.0,
    epoch=1,
    applied_seq=1,
    devices=(
        DeviceSnapshot(DeviceName("cpu"), 1000, 600, 550),
        DeviceSnapshot(DeviceName("host"), 2000, 0),
    ),
    engines=(
        engine(0, "m", EngineStatus.ACTIVE),
        engine(1, "m", EngineStatus.ACTIVE),
        engine(0, "k", EngineStatus.SLEEPING),
    ),
    profiles=(),
)


@pytest.fixture
def telemetry() -> Telemetry:
    load = Load({"interactive": 3, "batch": 40}, 2, 3, {(ModelName("m"), NodeName("n")): 2})
    made = Telemetry(FakeJournal(), load=lambda: load)
    made.stage_ended(Attempt(activation="wake", activation_s=2.5, cached_tokens=60))
    made.stage_ended(Attempt(outcome=Outcome.FAILED, first_byte_at=None, output_tokens=None))
    made.job_ended(Job())
    made.job_ended(Job(finished_at=999.0))
    made.job_ended(Job(status=JobStatus.CANCELLED))
    made.decision("route")
    made.decision("route")
    made.prediction("prior")
    made.fallback("prediction")
    made.predicted(0.002, waited=True)
    made.set_fleet([SNAPSHOT])
    return made


def samples(telemetry: Telemetry) -> list[Sample]:
    return parse(telemetry.render())


def parse(text: bytes) -> list[Sample]:
    families = text_string_to_metric_families(text.decode())
    return [sample for family in families for sample in family.samples]


def all_samples(telemetry: Telemetry) -> list[Sample]:
    """Of the whole of ``/metrics``: what the gateway adds as well."""
    gate = Gate(max_held=1)
    gate.outcomes["chat/completions", 200] += 1
    return parse(telemetry.render() + gate_metrics(gate))


def value(telemetry: Telemetry, name: str, **labels: str) -> float:
    found = [
        sample.value
        for sample in samples(telemetry)
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


ONE = {"class": "interactive", "model": "m"}


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("maestroctl_requests_total", {**ONE, "outcome": "finished"}, 1),
        ("maestroctl_requests_total", {**ONE, "outcome": "failed"}, 1),
        ("maestroctl_prompt_tokens_total", ONE, 200),
        ("maestroctl_cached_tokens_total", ONE, 60),
        ("maestroctl_output_tokens_total", ONE, 5),
        ("maestroctl_ttft_seconds_count", ONE, 1),
        ("maestroctl_ttft_seconds_sum", ONE, 3.0),
        ("maestroctl_ttft_seconds_bucket", {**ONE, "le": "2.5"}, 0),
        ("maestroctl_ttft_seconds_bucket", {**ONE, "le": "5.0"}, 1),
        ("maestroctl_ttft_seconds_bucket", {**ONE, "le": "+Inf"}, 1),
        ("maestroctl_tpot_seconds_sum", ONE, 0.5),
        ("maestroctl_queue_wait_seconds_count", ONE, 2),
        ("maestroctl_queue_wait_seconds_sum", ONE, 4.0),
        ("maestroctl_activation_seconds_sum", {"model": "m", "kind": "wake"}, 2.5),
        ("maestroctl_jobs_total", {"class": "interactive", "status": "finished"}, 2),
        ("maestroctl_job_deadlines_total", {"class": "interactive", "met": "true"}, 1),
        ("maestroctl_job_deadlines_total", {"class": "interactive", "met": "false"}, 1),
        ("maestroctl_decisions_total", {"kind": "route"}, 2),
        ("maestroctl_stale_events_total", {}, 3),
        ("maestroctl_predictions_total", {"source": "prior"}, 1),
        ("maestroctl_fallbacks_total", {"what": "prediction"}, 1),
        ("maestroctl_queue_length", {"class": "batch"}, 40),
        ("maestroctl_in_flight_stages", {}, 2),
        ("maestroctl_kept_slots", {"model": "m", "node": "n"}, 2),
        ("maestroctl_nodes", {}, 1),
        ("maestroctl_device_budget_bytes", {"node": "n", "device": "cpu"}, 1000),
        ("maestroctl_device_booked_bytes", {"node": "n", "device": "cpu"}, 600),
        ("maestroctl_device_used_bytes", {"node": "n"}, 550),
        ("maestroctl_engines", {"node": "n", "model": "m", "state": "active"}, 2),
        ("maestroctl_engines", {"node": "n", "model": "k", "state": "sleeping"}, 1),
        ("maestroctl_engine_slots", {"node": "n", "model": "m"}, 8),
        ("maestroctl_engine_running_stages", {"node": "n", "model": "m"}, 4),
        ("maestroctl_engine_kv_limit_bytes", {"node": "n", "model": "m"}, 1000),
        ("maestroctl_engine_kv_booked_bytes", {"node": "n", "model": "m"}, 400),
        ("maestroctl_store_lag_seconds", {}, 0.25),
        ("maestroctl_store_pending_rows", {}, 7),
        ("maestroctl_store_dropped_rows_total", {"row": "DecisionRow"}, 3),
        ("maestroctl_store_refused_rows_total", {"row": "JobRow"}, 1),
    ],
)
def test_what_happened_is_exposed(
    telemetry: Telemetry, name: str, labels: dict[str, str], expected: float
) -> None:
    assert value(telemetry, name, **labels) == expected


def test_every_metric_is_in_the_document_and_the_other_way_round(telemetry: Telemetry) -> None:
    suffix = re.compile(r"_(bucket|sum|count)$")
    exposed = {suffix.sub("", sample.name) for sample in all_samples(telemetry)}
    documented = set(re.findall(r"`(maestroctl_\w+)(?:\{[^`]*\})?`", DOC.read_text()))
    assert documented == exposed


def test_labels_in_the_document_are_the_labels_exposed(telemetry: Telemetry) -> None:
    documented = dict(re.findall(r"`(maestroctl_\w+)\{([^`}]*)\}`", DOC.read_text()))
    for sample in all_samples(telemetry):
        name = re.sub(r"_(bucket|sum|count)$", "", sample.name)
        labels = {label for label in sample.labels if label != "le"}
        assert set(re.findall(r"\w+", documented.get(name, ""))) == labels, name


def test_nothing_is_exposed_twice_and_nothing_is_global() -> None:
    first, second = Telemetry(), Telemetry()
    first.decision("route")
    assert b"route" not in second.render()
    assert first.registry is not second.registry


def test_an_idle_coordinator_can_be_read() -> None:
    text = Telemetry().render().decode()
    assert "maestroctl_in_flight_stages 0.0" in text
    assert "maestroctl_store" not in text


def test_neither_jobs_nor_prompts_become_labels(telemetry: Telemetry) -> None:
    telemetry.stage_ended(Attempt(job_id="job-secret-1"))
    assert b"job-secret-1" not in telemetry.render()


def test_the_number_of_words_is_bounded() -> None:
    telemetry = Telemetry()
    for number in range(5000):
        refused = Attempt(model=f"model-{number}", dispatched_at=None, first_byte_at=None)
        telemetry.stage_ended(replace(refused, prompt_tokens=None, output_tokens=None))
    found = [s for s in samples(telemetry) if s.name == "maestroctl_requests_total"]
    assert len(found) == 1001
    assert sum(sample.value for sample in found) == 5000
    assert value(telemetry, "maestroctl_requests_total", model="other") == 4000


def test_names_with_quotes_and_line_breaks_stay_one_label() -> None:
    telemetry = Telemetry()
    name = 'a"b\\c\nd {model="x"} 测试'
    telemetry.stage_ended(Attempt(model=name))
    assert value(telemetry, "maestroctl_requests_total", model=name) == 1


def test_reporting_costs_a_few_microseconds() -> None:
    telemetry = Telemetry()
    attempts = [Attempt(model=f"m{number % 7}", activation="wake") for number in range(2000)]
    best = float("inf")
    for _ in range(5):
        start = time.thread_time()
        for attempt in attempts:
            telemetry.stage_ended(attempt)
        best = min(best, (time.thread_time() - start) / len(attempts))
    assert best < 5e-6
    start = time.thread_time()
    for _ in range(2000):
        telemetry.decision("route")
        telemetry.set_fleet((SNAPSHOT,))
    assert (time.thread_time() - start) / 2000 < 5e-6
