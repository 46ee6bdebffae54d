"""Disks that are full, read-only or somebody else's, and a history that is long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.errors import MaestroError, StoreError
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.rows import DecisionRow, JobRow, Row, StageAttemptRow, StepResultRow

NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; skipped where none may be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def big_job(number: int) -> JobRow:
    return JobRow(f"j{number}", float(number), output="x" * 20_000)


def fill(store: Store) -> int:
    """Commit jobs until the disk is full; how many were stored."""
    for number in range(1000):
        try:
            store.commit([big_job(number)])
        except StoreError as error:
            return number if "no space left on the disk" in str(error) else -1
    return -1


def test_a_full_disk_is_a_clear_error_and_what_was_stored_stays(small_disk: Path) -> None:
    url = f"sqlite:///{small_disk}/state.db"
    with Store.open(url) as store:
        stored = fill(store)
        assert stored > 3
        assert len(store.jobs(limit=10**6)) == stored
    with Store.open(url) as store:
        assert {job.job_id for job in store.jobs(limit=10**6)} == {f"j{i}" for i in range(stored)}


def test_a_full_disk_at_open_is_a_clear_error(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(2 << 20))
    with pytest.raises(StoreError, match="no space left"):
        Store.open(f"sqlite:///{small_disk}/state.db")


async def test_rows_written_to_a_full_disk_are_stored_once_there_is_space(
    small_disk: Path,
) -> None:
    (small_disk / "ballast").write_bytes(bytes(400_000))
    errors: list[MaestroError] = []
    with Store.open(f"sqlite:///{small_disk}/state.db") as store:
        journal = Journal(store, on_error=errors.append)
        number = 0
        end = time.monotonic() + 20
        while not errors and time.monotonic() < end:
            journal.write([big_job(number)])
            number += 1
            await asyncio.sleep(0.002)
        assert "no space left on the disk" in str(errors[0])
        with pytest.raises(StoreError, match="no space left"):
            await journal.commit([big_job(10_000)], retry=False)
        (small_disk / "ballast").unlink()
        async with asyncio.timeout(20):
            await journal.flush()
        assert {job.job_id for job in store.jobs(limit=10**6)} == {f"j{i}" for i in range(number)}
        assert len(errors) == 1
        await journal.close()


def test_a_database_at_its_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/state.db") as store:
        store._engine.dispose()

        @sa.event.listens_for(store._engine, "connect")
        def limit(connection: Any, _: object) -> None:
            connection.execute("PRAGMA max_page_count=60")

        stored = fill(store)
        assert stored > 3
        assert len(store.jobs(limit=10**6)) == stored


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to act as another user")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_folder_of_somebody_else_is_no_permission(tmp_path: Path, mode: int) -> None:
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    folder = tmp_path / "theirs"
    folder.mkdir(mode=mode)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(StoreError, match="Permission denied") as caught:
            Store.open(f"sqlite:///{folder}/state.db")
    finally:
        os.seteuid(0)
    assert str(folder) in str(caught.value)
    assert caught.value.hint
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to act as another user")
def test_a_file_of_somebody_else_is_no_permission(tmp_path: Path) -> None:
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    url = f"sqlite:///{tmp_path}/state.db"
    Store.open(url).close()
    os.seteuid(NOBODY)
    try:
        with pytest.raises(StoreError, match="Permission denied"):
            Store.open(url)
    finally:
        os.seteuid(0)


def test_a_read_only_file_system_is_named(small_disk: Path) -> None:
    Store.open(f"sqlite:///{small_disk}/state.db").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match="Read-only file system"):
        Store.open(f"sqlite:///{small_disk}/state.db")


def history(number: int) -> list[Row]:
    name = f"j{number}"
    return [
        JobRow(name, float(number), status=JobStatus.FINISHED, finished_at=number + 1.0),
        StepResultRow(name, "plan", 1, 0, 1, "output", 1.0),
        StageAttemptRow(f"{name}-s", name, 1, 1.0, outcome=Outcome.FINISHED),
        DecisionRow(float(number), "route", f"{name}-s", "n", "why"),
    ]


def test_a_hundred_thousand_jobs_are_pruned_in_short_transactions(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path}/state.db") as store:
        for start in range(0, 100_000, 1000):
            store.commit([row for number in range(start, start + 1000) for row in history(number)])
        longest = 0.0
        write = store._write

        def timed(work: Any) -> Any:
            nonlocal longest
            start = time.perf_counter()
            result = write(work)
            longest = max(longest, time.perf_counter() - start)
            return result

        store._write = timed  # type: ignore[method-assign]
        assert store.prune(10_000) == 90_000
        assert longest < 1.0
        assert len(store.jobs(limit=10**6)) == 10_000
        assert store.job("j90000") is not None
        assert store.job("j89999") is None
        with store._engine.connect() as connection:
            for table in ("step_results", "stage_attempts", "decisions"):
                count = connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()
                assert count == 10_000, table
        print(f"longest transaction {longest * 1000:.1f} ms")
