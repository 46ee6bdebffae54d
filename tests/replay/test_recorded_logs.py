"""Decisions of the past are taken again, and a log that was altered is found out.

What is done is compared, not how it is explained: a record may be worded anew. When a change of
the decision code is wanted, `python -m tests.replay.record` makes the logs again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maestroctl.errors import MaestroError
from maestroctl.replay.run import replay_log
from maestroctl.telemetry.event_codec import EVENT_TYPES
from maestroctl.telemetry.log_reader import read_log
from tests.replay.record import LOGS, MAX_BYTES, MUST_DIFFER

RECORDED = sorted(path for path in LOGS.glob("*.jsonl") if path.stem != MUST_DIFFER)
ALTERED = LOGS / f"{MUST_DIFFER}.jsonl"


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_log_is_decided_as_it_was(path: Path) -> None:
    found = replay_log(path, explanations=False)
    assert found.difference is None, "\n".join(found.difference.diff)
    assert found.num_events == path.read_bytes().count(b"\n") - 1
    assert found.num_events > 20
    assert path.stat().st_size <= MAX_BYTES


def test_there_are_logs_of_both_cores_live_and_simulated() -> None:
    names = {path.stem for path in RECORDED}
    assert names >= {"live-coordinator", "live-node", "simulated-fcfs-coordinator"}
    kinds = {type(entry.event) for path in RECORDED for entry in read_log(path)[1]}
    assert len(kinds) > len(EVENT_TYPES) // 2


def test_a_log_whose_order_was_altered_differs_in_what_is_done() -> None:
    found = replay_log(ALTERED, explanations=False)
    assert found.difference is not None
    assert not found.difference.only_explained
    assert 1 < found.difference.number < ALTERED.read_bytes().count(b"\n") - 1
    diff = found.difference.diff
    assert [line.split()[:2] for line in diff if line[0] in "+-"] == [["-", "key:"], ["+", "key:"]]


def test_one_effect_that_was_tampered_with_is_found_at_its_event(tmp_path: Path) -> None:
    lines = (LOGS / "live-coordinator.jsonl").read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if '"DispatchStage"' in line)
    now_s, name, event, effects = json.loads(lines[number])
    dispatch = next(fields for kind, fields in effects if kind == "DispatchStage")
    dispatch["booked_tokens"] += 1
    lines[number] = json.dumps([now_s, name, event, effects]) + "\n"
    path = tmp_path / "tampered.jsonl"
    path.write_text("".join(lines))
    difference = replay_log(path).difference
    assert difference is not None
    assert difference.number == number
    changed = [line.split() for line in difference.diff if line[0] in "+-"]
    assert [words[:2] for words in changed] == [["-", "booked_tokens:"], ["+", "booked_tokens:"]]


def test_another_explanation_is_a_difference_unless_only_actions_count(tmp_path: Path) -> None:
    path = tmp_path / "reworded.jsonl"
    text = (LOGS / "simulated-fcfs-coordinator.jsonl").read_text()
    assert '"kind":"route"' in text
    path.write_text(text.replace('"kind":"route"', '"kind":"rowt"'))
    strict = replay_log(path)
    assert strict.difference is not None
    assert strict.difference.only_explained
    lenient = replay_log(path, explanations=False)
    assert lenient.difference is None
    assert lenient.num_reworded > 0


def test_a_log_without_its_beginning_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "late.jsonl"
    text = (LOGS / "live-node.jsonl").read_text()
    path.write_text(text.replace('"part":0', '"part":3', 1))
    with pytest.raises(MaestroError, match="beginning is gone") as refused:
        replay_log(path)
    assert refused.value.hint is not None


def test_a_log_of_an_older_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl"
    text = (LOGS / "live-node.jsonl").read_text()
    path.write_text(text.replace('"format":2', '"format":1', 1))
    with pytest.raises(MaestroError, match="format 1, written by maestroctl"):
        replay_log(path)


def test_a_core_with_parts_of_an_experiment_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    text = (LOGS / "simulated-fcfs-coordinator.jsonl").read_text()
    path.write_text(text.replace('"unnamed":[]', '"unnamed":["ordering"]', 1))
    with pytest.raises(MaestroError, match="parts that a log cannot hold: ordering"):
        replay_log(path)
