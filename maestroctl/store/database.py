"""The durable state of one coordinator, in one SQLite file.

Theory of operation. Everything that must outlive a process is a row (`rows`). Writing is
`Store.commit`: one transaction, each row replacing the one with its key. The file is in WAL mode:
readers never block the writer, and with ``synchronous=NORMAL`` a commit is in the operating
system's hands, which survives the death of any process; ``FULL`` also survives a power loss and
costs an fsync per commit.

One process owns the file (`lock`); inside it, writers take turns on a mutex, so SQLite's own
busy handling is only met when something foreign opens the file. A `Store` may be used from any
thread and blocks; the event loop writes through `journal` and reads in a worker thread.

Not here: batching (`journal`), what to do after a failure (the caller), other databases than
SQLite (statements are portable, see `schema`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.errors import InvariantViolation, StoreError
from maestroctl.store import codec, prune, schema
from maestroctl.store.location import StateLocation, parse_state_url
from maestroctl.store.lock import StateLock
from maestroctl.store.rows import (
    DecisionRow,
    JobRow,
    ObservationRow,
    Row,
    StageAttemptRow,
    StepResultRow,
)
from maestroctl.store.sqlite_errors import is_bad_value, store_error

_BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a foreign lock on the file."""
_WAL_KEEP_BYTES = 64 << 20
"""The -wal file is cut back to this after a checkpoint."""
_PRUNE_BATCH = 200
"""Jobs deleted per transaction: a few milliseconds, so commits in between are not held up."""

_R = TypeVar("_R")
_Groups = dict[type[Row], list[tuple[Any, ...]]]
"""Parameters to write, per row type."""


class Store:
    """Rows in, rows out; made by `Store.open`, closed by `close` or as a context manager."""

    def __init__(self, location: StateLocation, engine: sa.Engine, lock: StateLock | None) -> None:
        self.location = location
        self._engine = engine
        self._lock = lock
        self._writing = threading.Lock()
        """Held for one transaction that writes."""
        self._statements = {
            kind: schema.upsert_statement(entry.table, engine.dialect)[0]
            for kind, entry in codec.CODECS.items()
        }

    @classmethod
    def open(cls, url: str = "", *, exclusive: bool = True) -> Store:
        """Open the state, creating folder, file and tables where they are missing.

        Args:
            url: see `location`; empty = the user's data folder.
            exclusive: own the state, as a coordinator must. False = read alongside whoever
                owns it; nothing is created.

        Raises:
            StateLocked: another coordinator owns it; names its pid.
            StoreError: no permission, not a database, damaged, disk full, made by a newer
                version, or (not exclusive) missing.
        """
        location = parse_state_url(url)
        if not exclusive and not location.path.exists():
            raise StoreError(
                f"reading the state {location.path}: there is none yet",
                hint="run `maestroctl serve` once, or set [coordinator] state",
            )
        lock = None
        if exclusive:
            location.make()
            lock = StateLock(location.path)
        engine = _make_engine(location)
        try:
            with engine.begin() as connection:
                schema.prepare_schema(connection, str(location.path), change=exclusive)
        except Exception as error:
            engine.dispose()
            if lock is not None:
                lock.release()
            if isinstance(error, sa.exc.DBAPIError):
                raise store_error(f"opening the state {location.path}", error) from error
            raise
        return cls(location, engine, lock)

    def close(self) -> None:
        """Close every connection and give the state up; a second call does nothing."""
        self._engine.dispose()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing --------------------------------------------------------------------------------

    def commit(self, rows: Iterable[Row]) -> None:
        """Store all of `rows` in one transaction, or none of them.

        Rows with the same key are merged to the last of them before they are written.

        Raises:
            StoreError: the database refused (disk full, damaged, ...); trying again may help.
            InvariantViolation: a row holds a value that can never be stored.
        """
        groups = _group(rows)
        try:
            self._write(partial(self._insert, groups=groups))
        except UnicodeEncodeError:
            # A model may write half a surrogate pair in its JSON; no database takes that.
            groups = {kind: _without_surrogates(values) for kind, values in groups.items()}
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

    # --- reading --------------------------------------------------------------------------------

    def jobs(self, limit: int = 100, status: JobStatus | None = None) -> list[JobRow]:
        """Newest first, external ones included."""
        table = schema.jobs
        query = sa.select(table).order_by(table.c.submitted_at.desc(), table.c.job_id).limit(limit)
        if status is not None:
            query = query.where(table.c.status == status.value)
        return self._select(query, codec.job_row)

    def job(self, job_id: str) -> JobRow | None:
        """One job; None when unknown."""
        query = sa.select(schema.jobs).where(schema.jobs.c.job_id == job_id)
        found = self._select(query, codec.job_row)
        return found[0] if found else None

    def unfinished_jobs(self) -> list[JobRow]:
        """Submitted jobs to be resumed, oldest first; external ones cannot be."""
        table = schema.jobs
        running = sa.and_(table.c.status == JobStatus.RUNNING.value, table.c.external.is_(False))
        query = sa.select(table).where(running).order_by(table.c.submitted_at, table.c.job_id)
        return self._select(query, codec.job_row)

    def step_results(self, job_id: str) -> list[StepResultRow]:
        """Finished step runs of a job, in the order in which they finished."""
        table = schema.step_results
        query = sa.select(table).where(table.c.job_id == job_id)
        query = query.order_by(table.c.finished_at, table.c.step, table.c.visit, table.c.item)
        return self._select(query, codec.step_result_row)

    def attempts(self, job_id: str) -> list[StageAttemptRow]:
        """Stage attempts of a job, oldest first."""
        table = schema.stage_attempts
        query = sa.select(table).where(table.c.job_id == job_id)
        query = query.order_by(table.c.arrived_at, table.c.stage_id, table.c.attempt)
        return self._select(query, codec.stage_attempt_row)

    def decisions(self, subject: str, limit: int = 1000) -> list[DecisionRow]:
        """The last `limit` records about one stage, job or engine, oldest first."""
        return self._last_decisions(schema.decisions.c.subject == subject, limit)

    def job_decisions(self, job_id: str, limit: int = 1000) -> list[DecisionRow]:
        """The last `limit` records about a job and all of its stages, oldest first."""
        attempts, subject = schema.stage_attempts, schema.decisions.c.subject
        stages = sa.select(attempts.c.stage_id).where(attempts.c.job_id == job_id)
        return self._last_decisions(sa.or_(subject == job_id, subject.in_(stages)), limit)

    def engine_decisions(
        self, node: str, since: float, until: float, limit: int = 100
    ) -> list[DecisionRow]:
        """The last `limit` records about engines of a node in a span of Unix time, oldest first."""
        table = schema.decisions
        of_node = table.c.subject.endswith(f"@{node}", autoescape=True)
        where = sa.and_(of_node, table.c.at >= since, table.c.at <= until)
        return self._last_decisions(where, limit)

    def job_of_stage(self, stage_id: str) -> str | None:
        """The job that a stage belongs to; None when the stage has no attempt here."""
        attempts = schema.stage_attempts
        query = sa.select(attempts.c.job_id).where(attempts.c.stage_id == stage_id).limit(1)
        return self._read(lambda connection: connection.execute(query).scalar())

    def job_observations(self, job_id: str) -> list[ObservationRow]:
        """What was predicted for the stages of a job, and what came of it."""
        attempts, table = schema.stage_attempts, schema.observations
        stages = sa.select(attempts.c.stage_id).where(attempts.c.job_id == job_id)
        query = sa.select(table).where(table.c.stage_id.in_(stages)).order_by(table.c.at)
        return self._select(query, codec.observation_row)

    def observations(self, limit: int = 10_000) -> list[ObservationRow]:
        """The last `limit` observations, newest first."""
        table = schema.observations
        query = sa.select(table).order_by(table.c.at.desc()).limit(limit)
        return self._select(query, codec.observation_row)

    def count_observations(self, after: float) -> int:
        """Observations made later than `after`, Unix seconds."""
        table = schema.observations
        query = sa.select(sa.func.count()).where(table.c.at > after)
        return int(self._read(lambda connection: connection.execute(query).scalar()) or 0)

    def meta(self, key: str) -> str | None:
        """The value of a `MetaRow`; None when there is none."""
        query = sa.select(schema.meta.c.value).where(schema.meta.c.key == key)
        return self._read(lambda connection: connection.execute(query).scalar())

    def metas(self, prefix: str) -> dict[str, str]:
        """The values of all `MetaRow` whose key begins with `prefix`, by key."""
        column = schema.meta.c
        query = sa.select(column.key, column.value).where(
            column.key.startswith(prefix, autoescape=True)
        )
        return self._read(
            lambda connection: {row.key: row.value for row in connection.execute(query)}
        )

    def forget_metas(self, prefix: str, *, empty_only: bool = False) -> None:
        """Delete the `MetaRow` whose key begins with `prefix`; only empty ones if asked."""
        column = schema.meta.c
        statement = schema.meta.delete().where(column.key.startswith(prefix, autoescape=True))
        if empty_only:
            statement = statement.where(column.value == "")
        self._write(lambda connection: connection.execute(statement))

    # --- inside ---------------------------------------------------------------------------------

    def _last_decisions(self, where: sa.ColumnElement[bool], limit: int) -> list[DecisionRow]:
        table = schema.decisions
        query = sa.select(table).where(where).order_by(table.c.id.desc()).limit(limit)
        return self._select(query, codec.decision_row_of)[::-1]

    def _select(self, query: sa.Select[Any], make: Callable[[sa.RowMapping], _R]) -> list[_R]:
        def fetch(connection: sa.Connection) -> list[_R]:
            return [make(found) for found in connection.execute(query).mappings()]

        return self._read(fetch)

    def _read(self, work: Callable[[sa.Connection], _R]) -> _R:
        with self._translated("reading"), self._engine.connect() as connection:
            return work(connection)

    def _write(self, work: Callable[[sa.Connection], _R]) -> _R:
        with self._translated("writing"), self._writing, self._engine.begin() as connection:
            return work(connection)

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except UnicodeEncodeError:  # `commit` cleans the text and tries again
            raise
        except Exception as error:
            if doing == "writing" and is_bad_value(error):
                what = getattr(error, "orig", error)  # the driver's words, without the values
                raise InvariantViolation(f"a row that cannot be stored: {what}") from error
            if isinstance(error, sa.exc.DBAPIError):
                raise store_error(f"{doing} the state {self.location.path}", error) from error
            raise

    def _insert(self, connection: sa.Connection, groups: _Groups) -> None:
        for kind, values in groups.items():
            connection.exec_driver_sql(self._statements[kind], values)


def _group(rows: Iterable[Row]) -> _Groups:
    """Parameter tuples per row type; of rows with one key only the last."""
    latest: dict[type[Row], dict[Any, Row]] = {}
    for row in rows:
        kind = type(row)
        key = codec.CODECS[kind].key
        found = latest.setdefault(kind, {})
        found[len(found) if key is None else key(row)] = row
    return {
        kind: [codec.CODECS[kind].values(row) for row in found.values()]
        for kind, found in latest.items()
    }


def _without_surrogates(values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(_clean(value) for value in row) for row in values]


def _clean(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Through UTF-16, so that two halves that belong together become the character they mean.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _make_engine(location: StateLocation) -> sa.Engine:
    url = sa.URL.create("sqlite", database=str(location.path))
    engine = sa.create_engine(
        url,
        connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000},
        hide_parameters=True,  # they hold prompts and outputs, which errors must not show
    )

    @sa.event.listens_for(engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={location.synchronous}")
        cursor.execute(f"PRAGMA journal_size_limit={_WAL_KEEP_BYTES}")
        cursor.close()

    return engine
