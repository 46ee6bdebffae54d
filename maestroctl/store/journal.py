"""The event loop's way to the store: rows in at once, durable a few milliseconds later.

Theory of operation. One writer thread owns all writing. The loop appends batches to a deque (no
lock, no system call unless the thread sleeps); the thread wakes at the first batch, lingers up to
`window_s` so that neighbours share the transaction, and commits what is there. A caller that waits
(`commit`, `commit_then`, `flush`) cuts the linger short, and whoever comes while a commit runs
shares the next one. A batch is never split over two transactions, batches keep their order, and
rows of one key inside a group become one row: a request that starts and ends within a group is one
insert.

Back-pressure. `pending` counts rows that are not durable yet. From `max_pending` on, decision and
observation rows are dropped and counted in `dropped`; job, step, attempt and meta rows are kept
whatever it costs, and `is_behind` tells the coordinator to stop taking new work, which is what
bounds the memory.

Errors. A `StoreError` (disk full, ...) is reported once per outage through `on_error`, and the
group is tried again, 0.1 to 5 seconds apart, until it succeeds; callers that asked for
``retry=False`` get the error instead and their rows are withdrawn. A row that can never be stored
(`InvariantViolation`) takes only its own batch with it and is always reported.

See also: `database` for what a commit guarantees.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

from maestroctl.errors import InvariantViolation, MaestroError, StoreError
from maestroctl.store.codec import CODECS
from maestroctl.store.rows import Row

_RETRY_FIRST_S = 0.1
_RETRY_LAST_S = 5.0
"""Pause between tries during an outage; doubles from first to last."""


class RowSink(Protocol):
    """What the journal needs of a `Store`."""

    def commit(self, rows: Iterable[Row]) -> None:
        """All of `rows` or none, durable on return."""
        ...


class _Batch(NamedTuple):
    """Rows that are stored together. `settle` hears, on the loop, how that went."""

    at: float
    rows: tuple[Row, ...]
    settle: Callable[[MaestroError | None], None] | None = None
    retry: bool = True


class Journal:
    """Made inside a running event loop and used from that loop alone.

    Args:
        store: where to.
        on_error: told on the loop, once per outage with its `StoreError`, and of every batch
            that could not be stored at all with an `InvariantViolation`.
        window_s: how long the first row of a group waits for others.
        group_rows: rows per transaction, about; a full group does not linger.
        max_pending: rows waiting from which on the droppable ones are dropped.
    """

    def __init__(
        self,
        store: RowSink,
        *,
        on_error: Callable[[MaestroError], None] | None = None,
        window_s: float = 0.008,
        group_rows: int = 1000,
        max_pending: int = 50_000,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """Rows given up because the disk cannot keep up, per row type. Written by the loop."""
        self.refused: Counter[str] = Counter()
        """Rows that can never be stored, per row type. Written by the thread."""
        self.failing: MaestroError | None = None
        """Why the store refuses at the moment; None while it works. Written by the thread."""
        self._store = store
        self._on_error = on_error
        self._window_s = window_s
        self._group_rows = group_rows
        self._max_pending = max_pending
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Batch] = deque()
        self._in_hand: list[_Batch] = []
        """Batches the thread is committing; kept for `lag_s`."""
        self._num_written = 0
        """Rows ever accepted; written by the loop only."""
        self._num_done = 0
        """Rows durable or given up; written by the thread only."""
        self._wake = threading.Event()
        self._cut = threading.Event()
        """Set = do not linger: somebody waits, the group is full, or the journal closes."""
        self._closing = False
        self._abandon_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="store-journal", daemon=True)
        self._thread.start()

    # --- the loop's side ------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Rows accepted that are not durable yet."""
        return self._num_written - self._num_done

    @property
    def is_behind(self) -> bool:
        """The disk cannot keep up: take no new work until this is False again."""
        return self.pending >= self._max_pending

    @property
    def lag_s(self) -> float:
        """Age of the oldest row that is not durable yet; 0 when there is none."""
        if self.pending == 0:
            return 0.0
        oldest = self._in_hand or self._waiting
        try:
            return max(0.0, time.monotonic() - oldest[0].at)
        except IndexError:  # done in the meantime
            return 0.0

    def write(self, rows: Iterable[Row]) -> None:
        """Store `rows` together, soon. Returns at once and never raises for the disk's sake."""
        self._append(_Batch(time.monotonic(), tuple(rows)))

    def commit_then(self, rows: Iterable[Row], callback: Callable[[], None]) -> None:
        """Store `rows` together, then call `callback` on the loop; never, if they cannot be."""

        def settle(error: MaestroError | None) -> None:
            if error is None:
                callback()

        self._append(_Batch(time.monotonic(), tuple(rows), settle))
        self._cut.set()

    async def commit(self, rows: Iterable[Row], *, retry: bool = True) -> None:
        """Store `rows` together and return when they are durable.

        Args:
            rows: any mix of types.
            retry: wait out an outage. False = at the first failure, withdraw the rows and raise.
                Cancelling the call withdraws nothing.

        Raises:
            StoreError: not stored (``retry=False``, or the journal was closed first).
            InvariantViolation: one of the rows can never be stored.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        settle = partial(_settle_future, future)
        self._append(_Batch(time.monotonic(), tuple(rows), settle, retry))
        self._cut.set()
        await future

    async def flush(self) -> None:
        """Return when everything written before this call is durable."""
        await self.commit(())

    async def close(self, timeout_s: float = 10.0) -> None:
        """Store what is pending, then end the thread. Writing afterwards raises.

        Raises:
            StoreError: the store refused for `timeout_s`; says how many rows are lost.
        """
        self._closing = True
        self._abandon_at = time.monotonic() + timeout_s
        self._cut.set()
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        lost = self.pending
        if lost:
            self._num_done = self._num_written
            raise StoreError(f"closing the state: {lost} rows could not be stored: {self.failing}")

    def _append(self, batch: _Batch) -> None:
        if self._closing:
            raise InvariantViolation("a row was written to a closed journal")
        if self.pending >= self._max_pending:
            batch = self._keep_the_needed(batch)
        self._num_written += len(batch.rows)
        self._waiting.append(batch)
        # The thread clears `_wake` before it looks at the deque, so a set flag seen here means
        # that it has yet to look: no wake-up is lost, and most calls make no system call.
        if not self._wake.is_set():
            self._wake.set()
        if self.pending >= self._group_rows and not self._cut.is_set():
            self._cut.set()

    def _keep_the_needed(self, batch: _Batch) -> _Batch:
        kept = []
        for row in batch.rows:
            if CODECS[type(row)].must_keep:
                kept.append(row)
            else:
                self.dropped[type(row).__name__] += 1
        return batch._replace(rows=tuple(kept))

    # --- the thread's side ----------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._wake.clear()
                if not self._waiting and not self._closing:
                    self._wake.wait()
            if not self._closing:
                self._cut.wait(self._window_s)
            self._cut.clear()
            self._in_hand = self._take()
            self._store_group(self._in_hand)
            self._in_hand = []
            if self._abandon_at is not None and time.monotonic() > self._abandon_at:
                self._fail(self._take(everything=True), self._give_up_error())
                return

    def _take(self, *, everything: bool = False) -> list[_Batch]:
        """Oldest batches, up to about `group_rows` rows."""
        taken: list[_Batch] = []
        room = self._group_rows
        while self._waiting and (room > 0 or everything):
            batch = self._waiting.popleft()
            taken.append(batch)
            room -= len(batch.rows)
        return taken

    def _store_group(self, batches: list[_Batch], *, gather: bool = True) -> None:
        """Commit `batches`, waiting out any outage; on return every one of them is settled.

        `gather` lets batches that come during an outage join, so that those which do not want
        to wait hear of it at once.
        """
        pause_s = _RETRY_FIRST_S
        while batches:
            try:
                self._store.commit(chain.from_iterable(batch.rows for batch in batches))
            except StoreError as error:
                self._report_outage(error)
                if gather:
                    batches = batches + self._take(everything=True)
                batches = self._withdraw(batches, error)
                self._in_hand = batches
                if self._abandoned(batches):
                    return
                self._pause(pause_s)
                pause_s = min(2 * pause_s, _RETRY_LAST_S)
            except Exception as error:
                self._isolate(batches, error)
                return
            else:
                self.failing = None
                self._settle(batches, None)
                return

    def _isolate(self, batches: list[_Batch], error: Exception) -> None:
        """One of `batches` cannot be stored: find out which, and store the others."""
        if len(batches) > 1:
            for batch in batches:
                # No gathering here: a newer row must not overtake the batches still to come.
                self._store_group([batch], gather=False)
            return
        bug = error
        if not isinstance(bug, InvariantViolation):
            bug = InvariantViolation(f"storing rows failed: {type(error).__name__}: {error}")
        for row in batches[0].rows:
            self.refused[type(row).__name__] += 1
        self._tell(bug)
        self._settle(batches, bug)

    def _withdraw(self, batches: list[_Batch], error: StoreError) -> list[_Batch]:
        """Fail those that asked not to wait; the others, in order."""
        self._settle([batch for batch in batches if not batch.retry], error)
        return [batch for batch in batches if batch.retry]

    def _abandoned(self, batches: list[_Batch]) -> bool:
        """The journal was closed and its time is over: `batches` are lost, and said to be."""
        if self._abandon_at is None or time.monotonic() < self._abandon_at:
            return False
        self._fail(batches, self._give_up_error())
        return True

    def _give_up_error(self) -> StoreError:
        return StoreError(f"the state was closed before the rows were stored: {self.failing}")

    def _pause(self, pause_s: float) -> None:
        # Somebody who waits ends the pause early, but not so early that a stream of callers
        # turns an outage into a busy loop.
        time.sleep(_RETRY_FIRST_S / 2)
        self._cut.wait(pause_s)
        if not self._closing:
            self._cut.clear()

    def _report_outage(self, error: StoreError) -> None:
        first = self.failing is None
        self.failing = error
        if first:
            self._tell(error)

    def _tell(self, error: MaestroError) -> None:
        if self._on_error is not None:
            self._call(partial(self._on_error, error))

    def _settle(self, batches: list[_Batch], error: MaestroError | None) -> None:
        self._num_done += sum(len(batch.rows) for batch in batches)
        self._notify(batches, error)

    def _fail(self, batches: list[_Batch], error: MaestroError) -> None:
        """Tell whoever waits; the rows stay counted as pending, for `close` to report."""
        self._notify(batches, error)

    def _notify(self, batches: list[_Batch], error: MaestroError | None) -> None:
        waiting = [batch.settle for batch in batches if batch.settle is not None]
        if waiting:
            self._call(partial(_settle_all, waiting, error))

    def _call(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop; a loop that is closed has nobody left who waits."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            pass


def _settle_all(
    waiting: list[Callable[[MaestroError | None], None]], error: MaestroError | None
) -> None:
    loop = asyncio.get_running_loop()
    for settle in waiting:  # each on its own, so that one that raises does not stop the others
        loop.call_soon(settle, error)


def _settle_future(future: asyncio.Future[None], error: MaestroError | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
