"""The event log: complete, bounded, and harmless to what it records."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from maestroctl.domain.fleet import ClusterSpec, CoordinatorSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, DeviceName, ModelName, NodeName, StageId, TimerId
from maestroctl.domain.llm import (
    EngineKind,
    EngineSpec,
    IterationCost,
    ModelProfile,
    ModelSource,
    ModelSpec,
)
from maestroctl.domain.policy import PolicySpec
from maestroctl.errors import MaestroError
from maestroctl.scheduler.events import MemoryRead, NodeEvent, StageProgressed, TimerFired
from maestroctl.telemetry.log_header import LogHeader, without_secrets
from maestroctl.telemetry.recorder import EventRecorder, read_log

HEADER = LogHeader(core="node", policy=PolicySpec(), started_at=1_700_000_000.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.jsonl"


def timer(number: int) -> NodeEvent:
    return TimerFired(TimerId(f"timer-{number}"))


def numbers(path: Path) -> list[int]:
    _, pairs = read_log(path)
    return [int(now_s) for _, now_s in pairs]


def test_what_was_recorded_is_read_in_order(path: Path) -> None:
    events = [timer(1), MemoryRead({DeviceName("cpu"): 5}), StageProgressed(StageId("s"), 1, 2)]
    recorder = EventRecorder(path, HEADER)
    for number, event in enumerate(events):
        recorder.append(event, number / 10)
    recorder.close()
    recorder.close()
    header, pairs = read_log(path)
    assert header == HEADER
    assert list(pairs) == [(event, number / 10) for number, event in enumerate(events)]


def test_a_header_of_a_node_round_trips(path: Path) -> None:
    profile = ModelProfile(
        *(ModelName("m"), 1, 2, 3, 4, 5, 6, 7, 8, 16, 4096, 8, 30.0, 2.0, 0.5),
        iteration=IterationCost(0.1, 0.01, 0.0, 0.001, 1.5),
    )
    header = LogHeader(
        core="node",
        policy=PolicySpec(max_wait_s=float("inf")),
        name="gpu/1",
        node=NodeSpec(NodeName("gpu/1"), memory_bytes=1 << 40),
        profiles=(profile,),
        budgets={"cpu": 1 << 34, "host": 0},
        epoch=7,
    )
    EventRecorder(path, header).close()
    assert read_log(path)[0] == header


def test_a_fleet_is_recorded_without_its_secrets(path: Path) -> None:
    fleet = FleetSpec(
        models={
            ModelName("m"): ModelSpec(
                ModelName("m"),
                ModelSource.parse("hf:org/m"),
                engine_args=("--api-key", "SECRET1"),
                url="http://user:SECRET2@host:1/v1?key=SECRET3",
                command=("serve", "SECRET4"),
                api_key_file="keyfile",
            )
        },
        engines={
            "default": EngineSpec(
                "default", EngineKind.VLLM, env={"HF_TOKEN": "SECRET5"}, args=("SECRET6",)
            )
        },
        nodes={NodeName("n"): NodeSpec(NodeName("n"))},
        clusters={ClusterName("local"): ClusterSpec(ClusterName("local"))},
        coordinator=CoordinatorSpec(state="postgresql://u:SECRET7@h/db"),
    )
    EventRecorder(path, LogHeader("coordinator", PolicySpec(), fleet=fleet)).close()
    assert "SECRET" not in path.read_text()
    header, _ = read_log(path)
    assert header.fleet == without_secrets(fleet)
    assert header.fleet.models[ModelName("m")].url == "http://host:1/v1"


def test_the_log_is_for_its_owner_alone(path: Path) -> None:
    EventRecorder(path, HEADER).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_reach_the_file_after_a_second_of_the_cores_time(path: Path) -> None:
    recorder = EventRecorder(path, HEADER)
    for now_s in (0.0, 0.3, 0.6):
        recorder.append(timer(1), now_s)
    assert len(numbers(path)) == 1
    recorder.append(timer(1), 1.0)
    assert len(numbers(path)) == 4
    recorder.close()


def test_parts_are_bounded_and_read_as_one_log(path: Path) -> None:
    recorder = EventRecorder(path, HEADER, max_bytes=4000, keep=100)
    for number in range(500):
        recorder.append(timer(number), float(number))
    recorder.close()
    parts = sorted(path.parent.iterdir())
    assert len(parts) > 3
    assert max(part.stat().st_size for part in parts) < 4200
    header, _ = read_log(path)
    assert header.part == 0
    assert numbers(path) == list(range(500))


def test_the_oldest_parts_go_and_the_header_says_so(path: Path) -> None:
    recorder = EventRecorder(path, HEADER, max_bytes=2000, keep=2)
    for number in range(500):
        recorder.append(timer(number), float(number))
    recorder.close()
    assert sorted(part.name for part in path.parent.iterdir()) == [
        "node.jsonl",
        "node.jsonl.1",
        "node.jsonl.2",
    ]
    header, _ = read_log(path)
    assert header.part > 0
    left = numbers(path)
    assert left == list(range(left[0], 500))


def test_a_log_of_an_earlier_life_is_kept_apart(path: Path) -> None:
    for life in (1, 2):
        header = LogHeader("node", PolicySpec(), started_at=float(life))
        recorder = EventRecorder(path, header)
        recorder.append(timer(life), float(life))
        recorder.close()
    assert numbers(path) == [2]
    assert numbers(path.with_name("node.jsonl.1")) == [1]


def test_a_half_written_last_line_is_skipped(path: Path) -> None:
    recorder = EventRecorder(path, HEADER)
    recorder.append(timer(1), 1.0)
    recorder.append(timer(2), 2.0)
    recorder.close()
    path.write_bytes(path.read_bytes()[:-7])
    assert numbers(path) == [1]


def test_a_broken_line_is_named(path: Path) -> None:
    recorder = EventRecorder(path, HEADER)
    for number in range(3):
        recorder.append(timer(number), float(number))
    recorder.close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"not json\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(MaestroError, match=r"node\.jsonl, line 3"):
        numbers(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"hello\n", "no header"),
        (b'{"core": "node"}\n', "no header"),
        (b'{"format": 99, "maestroctl": "9.9", "new": 1}\n', r"format 99.*9\.9"),
    ],
)
def test_a_file_that_is_no_log_is_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(MaestroError, match=message):
        read_log(path)


def test_a_missing_log_is_named(path: Path) -> None:
    with pytest.raises(MaestroError, match=r"node\.jsonl: No such file"):
        read_log(path)


def test_a_log_that_cannot_be_written_stops_and_counts_and_never_raises(tmp_path: Path) -> None:
    recorder = EventRecorder(tmp_path / "missing" / "log.jsonl", HEADER)
    recorder.append(timer(1), 1.0)
    recorder.flush()
    recorder.close()
    assert isinstance(recorder.failure, FileNotFoundError)
    assert recorder.num_lost == 1


def test_a_disk_that_fills_up_stops_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = EventRecorder(path, HEADER)
    recorder.append(timer(1), 1.0)
    monkeypatch.setattr(os, "write", full)
    recorder.append(timer(2), 2.0)
    recorder.append(timer(3), 3.0)
    monkeypatch.undo()
    recorder.close()
    assert recorder.failure is not None
    assert recorder.failure.errno == errno.ENOSPC
    assert recorder.num_lost == 2
    assert numbers(path) == [1]


def test_text_that_no_json_can_hold_is_counted_and_skipped(path: Path) -> None:
    recorder = EventRecorder(path, HEADER)
    recorder.append(TimerFired(TimerId("\ud800")), 1.0)
    recorder.append(timer(2), 2.0)
    recorder.close()
    assert recorder.num_lost == 1
    assert numbers(path) == [2]
