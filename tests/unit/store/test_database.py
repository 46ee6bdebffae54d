"""Rows in, rows out, and every way in which opening can be refused."""

from __future__ import annotations

import dataclasses
import sqlite3
import stat
from pathlib import Path

import pytest

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.records import Candidate, DecisionRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvariantViolation, StateLocked, StoreError
from maestroctl.store.database import Store
from maestroctl.store.reader import StateReader
from maestroctl.store.rows import (
    DecisionRow,
    JobRow,
    MetaRow,
    ObservationRow,
    Row,
    StageAttemptRow,
    StepResultRow,
    decision_row,
)

FULL_JOB = JobRow(
    job_id="job-1",
    submitted_at=1_700_000_000.123456,
    workflow="code-review",
    workflow_json='{"name": "code-review"}',
    input_json='"añadir 测试 🎼"',
    variables_json='{"language": "ქართული"}',
    service_class=ServiceClass.INTERACTIVE,
    deadline_s=60.5,
    status=JobStatus.FINISHED,
    reason="",
    output="line 1\nline 2\x00 \u202e 🎻",
    finished_at=1_700_000_009.75,
    external=True,
)
FULL_STEP = StepResultRow("job-1", "plan/ü", 2, 3, 4, "out", 5.5, repeat=True)
FULL_ATTEMPT = StageAttemptRow(
    stage_id="s-1",
    job_id="job-1",
    attempt=2,
    arrived_at=1.25,
    step="plan",
    role="planner",
    model="m/ö",
    node="n",
    service_class=ServiceClass.BATCH,
    outcome=Outcome.PREEMPTED,
    reason="freed memory",
    dispatched_at=2.0,
    first_byte_at=3.0,
    ended_at=4.0,
    prompt_tokens=1 << 40,
    output_tokens=7,
    cached_tokens=0,
    activation="wake",
    activation_s=0.5,
    streamed=False,
)
FULL_OBSERVATION = ObservationRow(
    "s-1",
    4.0,
    "w",
    "plan",
    "planner",
    "m",
    '{"depth": 0}',
    12.5,
    80.0,
    0.25,
    "model",
    7,
    True,
    True,
)
FULL_DECISION = DecisionRow(4.0, "route", "s-1", "n", "most free", '{"x": 1}')


def test_every_row_comes_back_as_it_went_in(store: Store) -> None:
    store.commit([FULL_JOB, FULL_STEP, FULL_ATTEMPT, FULL_OBSERVATION, FULL_DECISION])
    store.commit([MetaRow("note", "värde")])
    assert store.job("job-1") == FULL_JOB
    assert store.step_results("job-1") == [FULL_STEP]
    assert store.attempts("job-1") == [FULL_ATTEMPT]
    assert store.observations() == [FULL_OBSERVATION]
    assert store.decisions("s-1") == [FULL_DECISION]
    assert store.meta("note") == "värde"


@pytest.mark.parametrize(
    "row",
    [
        JobRow("j", 1.0),
        StepResultRow("j", "s", 1, 0, 1, "", 1.0),
        StageAttemptRow("s", "j", 1, 1.0),
    ],
    ids=lambda row: type(row).__name__,
)
def test_defaults_come_back_as_they_went_in(store: Store, row: Row) -> None:
    store.commit([row])
    found: list[object] = [store.job("j"), *store.step_results("j"), *store.attempts("j")]
    assert found.count(row) == 1


def test_a_row_replaces_the_one_with_its_key(store: Store) -> None:
    store.commit([JobRow("j", 1.0)])
    store.commit([JobRow("j", 1.0, status=JobStatus.FAILED, reason="why")])
    assert store.jobs() == [JobRow("j", 1.0, status=JobStatus.FAILED, reason="why")]


def test_of_rows_with_one_key_in_one_commit_the_last_stays(store: Store) -> None:
    store.commit([JobRow("j", 1.0, reason=str(number)) for number in range(5)])
    assert store.jobs() == [JobRow("j", 1.0, reason="4")]


def test_decisions_only_add_up(store: Store) -> None:
    store.commit([FULL_DECISION, FULL_DECISION])
    assert store.decisions("s-1") == [FULL_DECISION, FULL_DECISION]


def test_a_commit_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(InvariantViolation):
        store.commit([JobRow("good", 1.0), StageAttemptRow("s", "good", 1 << 80, 1.0)])
    assert store.jobs() == []


def test_an_unstorable_value_is_named_without_the_values_around_it(store: Store) -> None:
    secret = JobRow("j", 1.0, output="a secret", deadline_s=object())  # type: ignore[arg-type]
    with pytest.raises(InvariantViolation) as caught:
        store.commit([secret])
    assert "object" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_half_a_surrogate_pair_in_an_output_is_replaced_and_the_rest_kept(store: Store) -> None:
    store.commit([JobRow("j", 1.0, output="a\ud800b"), JobRow("k", 2.0, output="\ud83d\ude00")])
    assert [job.output for job in store.jobs()] == ["😀", "a\ufffdb"]


def test_jobs_are_listed_newest_first_and_by_status(store: Store) -> None:
    statuses = [JobStatus.FINISHED, JobStatus.RUNNING, JobStatus.FINISHED]
    store.commit([JobRow(f"j{i}", float(i), status=status) for i, status in enumerate(statuses)])
    assert [job.job_id for job in store.jobs(limit=2)] == ["j2", "j1"]
    assert [job.job_id for job in store.jobs(status=JobStatus.FINISHED)] == ["j2", "j0"]
    assert store.job("unknown") is None


def test_only_submitted_jobs_are_resumed(store: Store) -> None:
    store.commit(
        [
            JobRow("new", 2.0),
            JobRow("old", 1.0),
            JobRow("request", 1.5, external=True),
            JobRow("done", 1.0, status=JobStatus.FINISHED),
        ]
    )
    assert [job.job_id for job in store.unfinished_jobs()] == ["old", "new"]


def test_what_died_with_the_process_is_interrupted(store: Store) -> None:
    done = StageAttemptRow("s0", "request", 1, 1.0, outcome=Outcome.FINISHED, ended_at=2.0)
    store.commit(
        [
            JobRow("request", 1.0, external=True),
            JobRow("workflow", 1.0),
            JobRow("over", 1.0, external=True, status=JobStatus.FINISHED, finished_at=2.0),
            done,
            StageAttemptRow("s1", "request", 1, 1.0),
            StageAttemptRow("s2", "workflow", 1, 1.0),
        ]
    )
    assert store.interrupt_external(9.0) == 1
    request, workflow, over = (store.job(name) for name in ("request", "workflow", "over"))
    assert request is not None
    assert (request.status, request.finished_at) == (JobStatus.INTERRUPTED, 9.0)
    assert workflow is not None
    assert workflow.status is JobStatus.RUNNING
    assert over is not None
    assert over.finished_at == 2.0
    first, second = store.attempts("request")
    assert first == done
    assert (second.outcome, second.ended_at) == (Outcome.INTERRUPTED, 9.0)
    assert store.attempts("workflow")[0].outcome is Outcome.INTERRUPTED
    assert store.interrupt_external(10.0) == 0


def test_the_last_decisions_are_given_oldest_first(store: Store) -> None:
    store.commit([DecisionRow(float(i), "route", "s", str(i), "") for i in range(5)])
    assert [row.choice for row in store.decisions("s", limit=2)] == ["3", "4"]


def test_decisions_of_a_job_include_those_of_its_stages(store: Store) -> None:
    store.commit(
        [
            JobRow("j", 1.0),
            StageAttemptRow("s1", "j", 1, 1.0),
            StageAttemptRow("s2", "other", 1, 1.0),
            *(DecisionRow(1.0, "route", subject, "", "") for subject in ("s1", "j", "s2")),
        ]
    )
    assert [row.subject for row in store.job_decisions("j")] == ["s1", "j"]


def test_a_decision_record_keeps_its_candidates() -> None:
    record = DecisionRecord(
        at_s=5.0,
        kind="route",
        subject="s",
        choice="n1",
        reason="nearest",
        candidates=(Candidate("n1", 1.5, {"wait": 0.5}), Candidate("n2", rejected="stale")),
        rejected_counts={"no room": 3},
        input_age_s=0.25,
    )
    row = decision_row(record, 1_700_000_000.0)
    assert (row.at, row.kind, row.subject, row.choice) == (1_700_000_000.0, "route", "s", "n1")
    assert row.detail_json == (
        '{"candidates":[{"name":"n1","score":1.5,"terms":{"wait":0.5},"rejected":null},'
        '{"name":"n2","score":null,"terms":{},"rejected":"stale"}],'
        '"rejected_counts":{"no room":3},"input_age_s":0.25}'
    )


def test_epochs_rise_over_restarts(url: str) -> None:
    seen = []
    for _ in range(3):
        with Store.open(url) as store:
            seen += [store.next_epoch(), store.next_epoch()]
    assert seen == [1, 2, 3, 4, 5, 6]


def test_pruning_forgets_the_oldest_finished_jobs_and_what_hangs_on_them(store: Store) -> None:
    for number in range(6):
        done = number != 0  # the oldest job still runs
        store.commit(
            [
                JobRow(
                    f"j{number}",
                    float(number),
                    status=JobStatus.FINISHED if done else JobStatus.RUNNING,
                ),
                dataclasses.replace(FULL_STEP, job_id=f"j{number}"),
                StageAttemptRow(f"s{number}", f"j{number}", 1, 1.0),
                dataclasses.replace(FULL_OBSERVATION, stage_id=f"s{number}", at=float(number)),
                DecisionRow(float(number), "order", f"j{number}", "", ""),
                DecisionRow(float(number), "route", f"s{number}", "", ""),
            ]
        )
    assert store.prune(2) == 3
    assert [job.job_id for job in store.jobs()] == ["j5", "j4", "j0"]
    for number, kept in enumerate([True, False, False, False, True, True]):
        job_id = f"j{number}"
        counts = {
            len(store.step_results(job_id)),
            len(store.attempts(job_id)),
            len(store.decisions(job_id)),
            len(store.decisions(f"s{number}")),
        }
        assert counts == {1 if kept else 0}
    assert [row.stage_id for row in store.observations()] == ["s5", "s4", "s0"]
    assert store.prune(2) == 0


def test_pruning_forgets_decisions_about_engines_older_than_every_kept_job(store: Store) -> None:
    store.commit([JobRow(f"j{i}", float(i), status=JobStatus.FINISHED) for i in range(4)])
    store.commit([DecisionRow(i + 0.5, "residency", "m@n", str(i), "") for i in range(4)])
    store.prune(2)
    assert [row.choice for row in store.decisions("m@n")] == ["2", "3"]


def test_folder_and_file_are_for_their_owner_alone(store: Store) -> None:
    store.commit([JobRow("j", 1.0)])
    folder = store.location.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes) == {"state.db", "state.db-wal", "state.db-shm", "state.db.lock"}
    assert set(modes.values()) == {0o600}


def test_a_reader_beside_the_owner_sees_what_is_committed(store: Store, url: str) -> None:
    store.commit([JobRow("j", 1.0)])
    with StateReader.open(url) as reader:
        assert [job.job_id for job in reader.jobs()] == ["j"]


def test_a_second_owner_in_one_process_is_refused_too(store: Store, url: str) -> None:
    assert store.jobs() == []
    with pytest.raises(StateLocked, match=r"pid \d+"):
        Store.open(url)


def test_a_closed_state_can_be_opened_again(url: str) -> None:
    first = Store.open(url)
    first.close()
    first.close()
    with Store.open(url) as second:
        assert second.jobs() == []


def test_reading_a_state_that_does_not_exist_creates_nothing(url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="none yet"):
        StateReader.open(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"no database at all " * 500, b"SQLite format 3\x00" + b"\xff" * 4096]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "state.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"not a database|damaged"):
        Store.open(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_a_damaged_table_is_called_damage(store: Store, url: str) -> None:
    store.commit([JobRow(f"j{i}", 1.0, output="x" * 500) for i in range(200)])
    store.close()
    file = store.location.path
    raw = bytearray(file.read_bytes())
    for page in range(3, len(raw) // 4096):
        raw[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    file.write_bytes(raw)
    with pytest.raises(StoreError, match="damaged"), Store.open(url) as opened:
        opened.jobs(limit=1000)


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE meta (key TEXT, other INTEGER)")
    connection.execute("CREATE TABLE jobs (id INTEGER)")
    connection.close()
    with pytest.raises(StoreError, match="something else"):
        Store.open(f"sqlite:///{file}")


def test_a_newer_schema_is_refused_with_both_versions(url: str) -> None:
    with Store.open(url) as store:
        store.commit([MetaRow("schema_version", "99")])
    with pytest.raises(StoreError, match=r"version 99.*up to 2"):
        Store.open(url)
    with pytest.raises(StoreError, match="newer"):
        StateReader.open(url)


def test_a_folder_in_the_way_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(StoreError, match=r"state\.db"):
        Store.open(f"sqlite:///{tmp_path}/state.db")
