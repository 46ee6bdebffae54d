"""What the state says, for whoever may read it.

A `StateReader` reads alongside the coordinator that owns the state, which `database.Store` is. It
may be used from any thread and blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus
from maestroctl.errors import StoreError
from maestroctl.store import codec, schema
from maestroctl.store.location import StateLocation, parse_state_url
from maestroctl.store.rows import (
    DecisionRow,
    JobRow,
    ObservationRow,
    StageAttemptRow,
    StepResultRow,
)
from maestroctl.store.sqlite import open_sqlite
from maestroctl.store.sqlite_errors import store_error

_R = TypeVar("_R")


class StateReader:
    """Rows out; made by `open`, closed by `close` or as a context manager."""

    def __init__(self, location: StateLocation, engine: sa.Engine) -> None:
        self.location = location
        self._engine = engine

    @classmethod
    def open(cls, url: str = "") -> Self:
        """Open a state that is there; nothing is created or changed.

        Args:
            url: see `location`; empty = the user's data folder.

        Raises:
            StoreError: missing, no permission, not a database, damaged, or made by a newer
                version.
        """
        location = parse_state_url(url)
        if not location.path.exists():
            raise StoreError(
                f"reading the state {location.path}: there is none yet",
                hint="run `maestroctl serve` once, or set [coordinator] state",
            )
        return cls(location, open_sqlite(location, change=False))

    def close(self) -> None:
        """Close every connection; a second call does nothing."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- jobs -----------------------------------------------------------------------------------

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
        try:
            with self._engine.connect() as connection:
                return work(connection)
        except sa.exc.DBAPIError as error:
            raise store_error(f"reading the state {self.location.path}", error) from error
