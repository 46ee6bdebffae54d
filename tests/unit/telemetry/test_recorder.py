"""The event log: complete, bounded, and harmless to what it records."""

from __future__ import annotations

import errno
import os
import stat
import threading
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
from maestroctl.scheduler.effects import PublishSnapshot, SetTimer
from maestroctl.scheduler.events import MemoryRead, NodeEvent, StageProgressed, TimerFired
from maestroctl.telemetry.event_codec import Entry
from maestroctl.telemetry.log_header import LogHeader, without_secrets
from maestroctl.telemetry.log_reader import read_log
from maestroctl.telemetry.recorder import EventRecorder

HEADER = LogHeader(core="node", policy=PolicySpec(), started_at=1_700_000_000.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.jsonl"


def timer(number: int) -> NodeEvent:
    return TimerFired(TimerId(f"timer-{number}"))


def numbers(path: Path) -> list[int]:
    _, entries = read_log(path)
    return [int(entry.now_s) for entry in entries]


def test_what_was_recorded_is_read_in_order(path: Path) -> None:
    events = [timer(1), MemoryRead({DeviceName("cpu"): 5}), StageProgressed(StageId("s"), 1, 2)]
    recorder = EventRecorder(path, HEADER)
    for number, event in enumerate(events):
        recorder.append(event, number / 10)
    recorder.close()
    recorder.close()
    header, entries = read_log(path)
    assert header == HEADER
    assert list(entries) == [Entry(number / 10, event) for number, event in enumerate(events)]


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
        budgets={DeviceName("cpu"): 1 << 34, DeviceName("host"): 0},
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
        (b'{"format": 1, "maestroctl": "0.1", "old": 1}\n', r"format 1.*0\.1.*format 2"),
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


def test_text_that_no_json_can_hold_leaves_no_hole(path: Path) -> None:
    recorder = EventRecorder(path, HEADER)
    recorder.append(TimerFired(TimerId("half \ud800, whole \U0001f98a")), 1.0)
    recorder.append(timer(2), 2.0)
    recorder.close()
    assert recorder.num_lost == 0
    _, entries = read_log(path)
    assert next(entries).event == TimerFired(TimerId("half \ufffd, whole \U0001f98a"))
    assert next(entries).now_s == 2.0


def test_effects_and_errors_are_kept_with_their_event(path: Path) -> None:
    effects = (SetTimer(TimerId("t"), 3.0), PublishSnapshot())
    recorder = EventRecorder(path, HEADER)
    recorder.append(timer(1), 1.0, effects)
    recorder.append(timer(2), 2.0, error="it cannot be true")
    recorder.close()
    _, entries = read_log(path)
    assert list(entries) == [
        Entry(1.0, timer(1), effects),
        Entry(2.0, timer(2), error="it cannot be true"),
    ]


def test_a_recorder_in_the_background_writes_everything_in_order(path: Path) -> None:
    recorder = EventRecorder(path, HEADER, max_bytes=4000, keep=100, in_background=True)
    for number in range(500):
        recorder.append(timer(number), float(number))
    recorder.close()
    recorder.close()
    assert recorder.num_lost == 0
    assert numbers(path) == list(range(500))


def test_a_disk_that_stalls_does_not_hold_up_the_core(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, go_on = threading.Event(), threading.Event()
    write = os.write

    def stall(fd: int, data: bytes) -> int:
        stalled.set()
        assert go_on.wait(20)
        return write(fd, data)

    recorder = EventRecorder(path, HEADER, in_background=True)
    monkeypatch.setattr(os, "write", stall)
    recorder.append(timer(0), 0.0)
    assert stalled.wait(20)
    for number in range(1, 100):
        recorder.append(timer(number), float(number))  # the thread is stuck, this is not
    go_on.set()
    recorder.close()
    assert numbers(path) == list(range(100))


def test_a_disk_that_is_too_slow_for_long_stops_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = os.write

    def stall(fd: int, data: bytes) -> int:
        assert go_on.wait(20)
        return write(fd, data)

    recorder = EventRecorder(path, HEADER, in_background=True)
    monkeypatch.setattr(os, "write", stall)
    large = TimerFired(TimerId("x" * (1 << 20)))
    for number in range(40):
        recorder.append(large, float(number))
    go_on.set()
    recorder.close()
    assert "too slow" in str(recorder.failure)
    assert 0 < recorder.num_lost <= 40
