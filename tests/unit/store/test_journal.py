"""The journal: at once for the caller, durable soon, and nothing lost by a bad disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from maestroctl.domain.outcome import JobStatus
from maestroctl.errors import InvariantViolation, MaestroError, StoreError
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.rows import DecisionRow, JobRow, ObservationRow, Row, StepResultRow

DEADLINE_S = 5.0


class FakeDisk:
    """Commits into a list. `fault` set = raised; `gate` cleared = commits block."""

    def __init__(self) -> None:
        self.groups: list[list[Row]] = []
        self.tries = 0
        self.fault: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, rows: Iterable[Row]) -> None:
        self.tries += 1
        group = list(rows)
        assert self.gate.wait(DEADLINE_S)
        if self.fault is not None:
            raise self.fault
        if any(isinstance(row, JobRow) and row.job_id == "poison" for row in group):
            raise InvariantViolation("a row that cannot be stored")
        self.groups.append(group)

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group]


@asynccontextmanager
async def journal_over(
    disk: FakeDisk, errors: list[MaestroError] | None = None, **options: float
) -> AsyncIterator[Journal]:
    on_error = None if errors is None else errors.append
    journal = Journal(disk, on_error=on_error, **options)  # type: ignore[arg-type]
    try:
        yield journal
    finally:
        disk.fault = None
        disk.gate.set()
        if not journal._closing:
            await journal.close()


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "condition not met in time"
        await asyncio.sleep(0.002)


def job(name: str, **fields: object) -> JobRow:
    return JobRow(name, 1.0, **fields)  # type: ignore[arg-type]


DECISION = DecisionRow(1.0, "route", "s", "n", "")
OBSERVATION = ObservationRow("s", 1.0, "", "", "", "", "{}", 1, 2, 0, "prior", 1)


async def test_what_was_written_is_durable_after_flush(store: Store) -> None:
    journal = Journal(store)
    for number in range(2500):
        journal.write([job(f"j{number}")])
    await journal.flush()
    assert journal.pending == 0
    assert journal.lag_s == 0
    assert len(store.jobs(limit=10_000)) == 2500
    await journal.close()


async def test_rows_are_durable_soon_without_anybody_waiting(store: Store) -> None:
    journal = Journal(store)
    journal.write([job("j")])
    await until(lambda: store.job("j") is not None)
    await journal.close()


async def test_neighbours_share_one_transaction() -> None:
    disk = FakeDisk()
    async with journal_over(disk, window_s=DEADLINE_S) as journal:
        for number in range(50):
            journal.write([job(f"j{number}")])
        await journal.flush()
        assert [len(group) for group in disk.groups] == [50]


async def test_a_full_group_does_not_linger() -> None:
    disk = FakeDisk()
    async with journal_over(disk, window_s=DEADLINE_S, group_rows=10) as journal:
        for number in range(10):
            journal.write([job(f"j{number}")])
        await until(lambda: len(disk.rows) == 10)


async def test_a_group_is_bounded_and_no_batch_is_split() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    async with journal_over(disk, group_rows=10) as journal:
        for number in range(12):
            journal.write([job(f"j{number}-{part}") for part in range(3)])
        disk.gate.set()
        await journal.flush()
        assert len(disk.rows) == 36
        assert {len(group) % 3 for group in disk.groups} == {0}
        assert max(len(group) for group in disk.groups) <= 12


async def test_a_request_that_starts_and_ends_in_one_group_is_one_row(store: Store) -> None:
    journal = Journal(store, window_s=DEADLINE_S)
    journal.write([job("j")])
    journal.write([job("j", status=JobStatus.FINISHED)])
    await journal.flush()
    assert [row.status for row in store.jobs()] == [JobStatus.FINISHED]
    await journal.close()


async def test_commit_returns_when_its_rows_are_stored_together() -> None:
    disk = FakeDisk()
    async with journal_over(disk, window_s=DEADLINE_S) as journal:
        rows: list[Row] = [StepResultRow("j", "a", 1, 0, 1, "", 1.0), job("j")]
        await journal.commit(rows)
        assert disk.groups == [rows]


async def test_callback_runs_on_the_loop_after_the_rows_are_durable() -> None:
    disk = FakeDisk()
    seen: list[tuple[list[Row], int]] = []
    async with journal_over(disk) as journal:
        done = asyncio.Event()

        def callback() -> None:
            seen.append((disk.rows, threading.get_ident()))
            done.set()

        journal.commit_then([job("j")], callback)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
    assert seen == [([job("j")], threading.get_ident())]


async def test_a_callback_that_raises_does_not_stop_the_others() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    caught: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context))
    async with journal_over(disk) as journal:
        journal.commit_then([job("a")], lambda: 1 / 0)  # type: ignore[arg-type]
        disk.gate.set()
        await journal.commit([job("b")])
    assert len(caught) == 1


async def test_writers_never_wait_for_the_disk() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    async with journal_over(disk) as journal:
        for number in range(1000):
            journal.write([job(f"j{number}")])
        assert journal.pending == 1000
        await until(lambda: journal.lag_s > 0.01)


async def test_a_slow_disk_drops_decisions_and_observations_but_no_job() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    async with journal_over(disk, max_pending=100) as journal:
        for number in range(150):
            journal.write([job(f"j{number}"), DECISION, OBSERVATION])
        assert journal.is_behind
        disk.gate.set()
        await journal.flush()
        await until(lambda: not journal.is_behind)
        jobs = [row for row in disk.rows if isinstance(row, JobRow)]
        assert [row.job_id for row in jobs] == [f"j{number}" for number in range(150)]
        kept = sum(isinstance(row, DecisionRow) for row in disk.rows)
        assert 0 < kept < 100
        assert journal.dropped == {"DecisionRow": 150 - kept, "ObservationRow": 150 - kept}


async def test_an_outage_is_reported_once_and_waited_out() -> None:
    disk, errors = FakeDisk(), []  # type: ignore[var-annotated]
    disk.fault = StoreError("no space left on the disk")
    async with journal_over(disk, errors) as journal:
        waiter = asyncio.create_task(journal.commit([job("j")]))
        await until(lambda: disk.tries >= 3)
        assert [str(error) for error in errors] == ["no space left on the disk"]
        assert str(journal.failing) == "no space left on the disk"
        assert not waiter.done()
        journal.write([job("k")])
        disk.fault = None
        await waiter
        await journal.flush()
        await until(lambda: journal.failing is None)
        assert disk.rows == [job("j"), job("k")]
        disk.fault = StoreError("again")
        journal.write([job("l")])
        await until(lambda: len(errors) == 2)


async def test_who_does_not_want_to_wait_hears_of_the_outage_and_leaves_nothing() -> None:
    disk = FakeDisk()
    disk.fault = StoreError("no space left on the disk")
    async with journal_over(disk) as journal:
        journal.write([job("kept")])
        for name in ("first", "second"):
            with pytest.raises(StoreError, match="no space"):
                await journal.commit([job(name)], retry=False)
        disk.fault = None
        await journal.flush()
        assert disk.rows == [job("kept")]


async def test_order_is_kept_over_an_outage(store: Store) -> None:
    disk = FakeDisk()
    disk.fault = StoreError("full")
    async with journal_over(disk) as journal:
        for number in range(20):
            journal.write([job("j", reason=str(number))])
            await asyncio.sleep(0)
        await until(lambda: disk.tries > 0)
        journal.write([job("j", reason="last")])
        disk.fault = None
        await journal.flush()
        assert disk.rows[-1] == job("j", reason="last")
        store.commit(disk.rows)
        assert store.jobs()[0].reason == "last"


async def test_a_row_that_can_never_be_stored_takes_only_its_own_batch_with_it() -> None:
    disk, errors = FakeDisk(), []  # type: ignore[var-annotated]
    disk.gate.clear()
    async with journal_over(disk, errors) as journal:
        journal.write([job("before")])
        bad = asyncio.create_task(journal.commit([job("poison"), job("with-poison")]))
        await asyncio.sleep(0)
        journal.write([job("after")])
        disk.gate.set()
        with pytest.raises(InvariantViolation):
            await bad
        await journal.flush()
        assert disk.rows == [job("before"), job("after")]
        assert journal.refused == {"JobRow": 2}
        assert journal.pending == 0
        await until(lambda: len(errors) == 1)


async def test_an_unexpected_error_is_reported_and_the_journal_goes_on() -> None:
    disk, errors = FakeDisk(), []  # type: ignore[var-annotated]
    disk.fault = KeyError("surprise")
    async with journal_over(disk, errors) as journal:
        with pytest.raises(InvariantViolation, match="KeyError"):
            await journal.commit([job("j")])
        disk.fault = None
        await journal.commit([job("k")])
        assert disk.rows == [job("k")]


async def test_a_cancelled_waiter_withdraws_nothing() -> None:
    disk = FakeDisk()
    disk.gate.clear()
    async with journal_over(disk) as journal:
        waiter = asyncio.create_task(journal.commit([job("j")]))
        await asyncio.sleep(0)
        waiter.cancel()
        disk.gate.set()
        await journal.flush()
        assert disk.rows == [job("j")]


async def test_close_stores_what_is_pending_and_then_refuses_rows() -> None:
    disk = FakeDisk()
    async with journal_over(disk, window_s=DEADLINE_S, group_rows=10) as journal:
        for number in range(35):
            journal.write([job(f"j{number}")])
        await journal.close()
        assert len(disk.rows) == 35
        with pytest.raises(InvariantViolation, match="closed"):
            journal.write([job("late")])


async def test_close_during_an_outage_says_how_many_rows_are_lost() -> None:
    disk = FakeDisk()
    disk.fault = StoreError("no space left on the disk")
    async with journal_over(disk) as journal:
        waiter = asyncio.create_task(journal.commit([job("a"), job("b")]))
        await until(lambda: disk.tries > 0)
        journal.write([job("c")])
        with pytest.raises(StoreError, match="3 rows could not be stored: no space"):
            await journal.close(timeout_s=0.05)
        with pytest.raises(StoreError, match="closed before"):
            await waiter


async def test_close_waits_for_an_outage_that_ends_in_time() -> None:
    disk = FakeDisk()
    disk.fault = StoreError("full")
    async with journal_over(disk) as journal:
        journal.write([job("a")])
        await until(lambda: disk.tries > 0)
        closing = asyncio.create_task(journal.close(timeout_s=DEADLINE_S))
        await asyncio.sleep(0)
        disk.fault = None
        await closing
        assert disk.rows == [job("a")]


@pytest.mark.parametrize("batch", [1, 3])
async def test_writing_costs_the_caller_a_few_microseconds_per_row(batch: int) -> None:
    disk = FakeDisk()
    rows = [job(f"j{number}") for number in range(batch)]
    async with journal_over(disk, group_rows=10**9, max_pending=10**9) as journal:
        best = float("inf")
        for _ in range(5):
            start = time.thread_time()
            for _ in range(2000):
                journal.write(rows)
            best = min(best, (time.thread_time() - start) / 2000 / batch)
        await journal.flush()
    assert best < 5e-6
