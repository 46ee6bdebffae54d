"""The durable state of one coordinator, in one SQLite file.

Theory of operation. Everything that must outlive a process is a row (`rows`). Writing is
`Store.commit`: one transaction, each row replacing the one with its key. The file is in WAL mode:
readers never block the writer, and with ``synchronous=NORMAL`` a commit is in the operating
system's hands, which survives the death of any process; ``FULL`` also survives a power loss and
costs an fsync per commit.

One process owns the file (`lock`); inside it, writers take turns on a mutex, so SQLite's own
busy handling is only met when something foreign opens the file. A `Store` may be used from any
thread and blocks; the event loop writes through `journal` and reads in a worker thread.

Not here: queries (`reader`), batching (`journal`), what to do after a failure (the caller), other
databases than SQLite (statements are portable, see `schema`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self, TypeVar

import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.errors import InvariantViolation
from maestroctl.store import codec, prune, schema
from maestroctl.store.location import StateLocation, parse_state_url
from maestroctl.store.lock import StateLock
from maestroctl.store.reader import StateReader
from maestroctl.store.rows import Row
from maestroctl.store.sqlite import open_sqlite
from maestroctl.store.sqlite_errors import is_bad_value, store_error

_PRUNE_BATCH = 200
"""Jobs deleted per transaction: a few milliseconds, so commits in between are not held up."""

_R = TypeVar("_R")


class Store(StateReader):
    """Rows in, rows out; its owner alone writes."""

    def __init__(self, location: StateLocation, engine: sa.Engine, lock: StateLock) -> None:
        super().__init__(location, engine)
        self._lock = lock
        self._writing = threading.Lock()
        """Held for one transaction that writes."""
        self._statements = {
            kind: schema.upsert_statement(entry.table, engine.dialect)[0]
            for kind, entry in codec.CODECS.items()
        }

    @classmethod
    def open(cls, url: str = "") -> Self:
        """Own the state, creating folder, file and tables where they are missing.

        Args:
            url: see `location`; empty = the user's data folder.

        Raises:
            StateLocked: another coordinator owns it; names its pid.
            StoreError: no permission, not a database, damaged, disk full, or made by a newer
                version.
        """
        location = parse_state_url(url)
        location.make()
        lock = StateLock(location.path)
        try:
            return cls(location, open_sqlite(location, change=True), lock)
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close every connection and give the state up; a second call does nothing."""
        super().close()
        self._lock.release()

    # --- writing --------------------------------------------------------------------------------

    def commit(self, rows: Iterable[Row]) -> None:
        """Store all of `rows` in one transaction, or none of them.

        Rows with the same key are merged to the last of them before they are written.

        Raises:
            StoreError: the database refused (disk full, damaged, ...); trying again may help.
            InvariantViolation: a row holds a value that can never be stored.
        """
        groups = codec.group_rows(rows)
        try:
            self._write(partial(self._insert, groups=groups))
        except UnicodeEncodeError:
            # A model may write half a surrogate pair in its JSON; no database takes that.
            groups = {kind: codec.without_surrogates(values) for kind, values in groups.items()}
            self._write(partial(self._insert, groups=groups))

    def next_epoch(self) -> int:
        """A number higher than any before it, over the life of the database (from 1)."""
        epoch = schema.meta.c.key == "epoch"
        raised = sa.cast(sa.cast(schema.meta.c.value, sa.Integer) + 1, sa.Text)

        def step(connection: sa.Connection) -> int:
            connection.execute(schema.meta.update().where(epoch).values(value=raised))
            return int(connection.execute(sa.select(schema.meta.c.value).where(epoch)).scalar_one())

        return self._write(step)

    def interrupt_external(self, at: float) -> int:
        """After a crash: end what died with the old process.

        External jobs that were running end INTERRUPTED, and so does every open stage attempt,
        also those of workflow jobs, which go on with a new attempt.

        Args:
            at: Unix seconds, the end of what is ended.

        Returns:
            How many jobs were interrupted.
        """
        jobs, attempts = schema.jobs, schema.stage_attempts
        reason = "the coordinator stopped while it ran"
        open_jobs = sa.and_(jobs.c.status == JobStatus.RUNNING.value, jobs.c.external.is_(True))

        def end(connection: sa.Connection) -> int:
            connection.execute(
                attempts.update()
                .where(attempts.c.outcome.is_(None))
                .values(outcome=Outcome.INTERRUPTED.value, ended_at=at, reason=reason)
            )
            status = JobStatus.INTERRUPTED.value
            ended = jobs.update().where(open_jobs)
            return connection.execute(
                ended.values(status=status, finished_at=at, reason=reason)
            ).rowcount

        return self._write(end)

    def prune(self, history_jobs: int) -> int:
        """Delete the oldest finished jobs beyond `history_jobs`, in small transactions.

        Returns:
            How many jobs were deleted.
        """
        surplus = self._read(partial(prune.count_surplus, history_jobs=history_jobs))
        deleted = 0
        while deleted < surplus:
            size = min(_PRUNE_BATCH, surplus - deleted)
            done = self._write(partial(prune.prune_batch, limit=size))
            if done == 0:
                break
            deleted += done
        while self._write(partial(prune.prune_old_decisions, limit=1000)):
            pass
        return deleted

    def forget_metas(self, prefix: str, *, empty_only: bool = False) -> None:
        """Delete the `MetaRow` whose key begins with `prefix`; only empty ones if asked."""
        column = schema.meta.c
        statement = schema.meta.delete().where(column.key.startswith(prefix, autoescape=True))
        if empty_only:
            statement = statement.where(column.value == "")
        self._write(lambda connection: connection.execute(statement))

    # --- inside ---------------------------------------------------------------------------------

    def _write(self, work: Callable[[sa.Connection], _R]) -> _R:
        try:
            with self._writing, self._engine.begin() as connection:
                return work(connection)
        except UnicodeEncodeError:  # `commit` cleans the text and tries again
            raise
        except Exception as error:
            if is_bad_value(error):
                what = getattr(error, "orig", error)  # the driver's words, without the values
                raise InvariantViolation(f"a row that cannot be stored: {what}") from error
            if isinstance(error, sa.exc.DBAPIError):
                raise store_error(f"writing the state {self.location.path}", error) from error
            raise

    def _insert(self, connection: sa.Connection, groups: codec.RowGroups) -> None:
        for kind, values in groups.items():
            connection.exec_driver_sql(self._statements[kind], values)
