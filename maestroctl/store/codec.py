"""Row types to parameter tuples and back, and which table each belongs to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.store import schema
from maestroctl.store.rows import (
    DecisionRow,
    JobRow,
    MetaRow,
    ObservationRow,
    Row,
    StageAttemptRow,
    StepResultRow,
)


@dataclass(frozen=True, slots=True)
class TableCodec:
    """How one row type is written.

    Attributes:
        values: row -> parameters, in the order of the table's columns.
        key: row -> primary key; None where every write adds a row.
        must_keep: False = may be dropped, and counted, when the disk cannot keep up.
    """

    table: sa.Table
    values: Callable[[Any], tuple[Any, ...]]
    key: Callable[[Any], Hashable] | None
    must_keep: bool = True


def _getter(table: sa.Table, *, enums: tuple[str, ...] = (), skip: str = "id") -> Any:
    """attrgetter over the columns; enums go in as plain text, which drivers bind fastest."""
    names = [column.name for column in table.columns if column.name != skip]
    return attrgetter(*(f"{name}._value_" if name in enums else name for name in names))


_attempt_values = _getter(schema.stage_attempts, enums=("service_class",), skip="outcome")


def _stage_attempt_values(row: StageAttemptRow) -> tuple[Any, ...]:
    # `outcome` may be None, so no dotted getter; it is the last column of its table.
    return (*_attempt_values(row), None if row.outcome is None else row.outcome._value_)


CODECS: dict[type[Row], TableCodec] = {
    JobRow: TableCodec(
        schema.jobs,
        _getter(schema.jobs, enums=("service_class", "status")),
        attrgetter("job_id"),
    ),
    StepResultRow: TableCodec(
        schema.step_results,
        _getter(schema.step_results),
        attrgetter("job_id", "step", "visit", "item"),
    ),
    StageAttemptRow: TableCodec(
        schema.stage_attempts, _stage_attempt_values, attrgetter("stage_id", "attempt")
    ),
    ObservationRow: TableCodec(
        schema.observations, _getter(schema.observations), attrgetter("stage_id"), must_keep=False
    ),
    DecisionRow: TableCodec(schema.decisions, _getter(schema.decisions), None, must_keep=False),
    MetaRow: TableCodec(schema.meta, _getter(schema.meta), attrgetter("key")),
}

RowGroups = dict[type[Row], list[tuple[Any, ...]]]
"""Parameters to write, per row type."""


def group_rows(rows: Iterable[Row]) -> RowGroups:
    """Parameter tuples per row type; of rows with one key only the last."""
    latest: dict[type[Row], dict[Any, Row]] = {}
    for row in rows:
        kind = type(row)
        key = CODECS[kind].key
        found = latest.setdefault(kind, {})
        found[len(found) if key is None else key(row)] = row
    return {
        kind: [CODECS[kind].values(row) for row in found.values()] for kind, found in latest.items()
    }


def without_surrogates(values: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The parameters with what no database takes, half a surrogate pair, replaced."""
    return [tuple(_clean(value) for value in row) for row in values]


def _clean(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Through UTF-16, so that two halves that belong together become the character they mean.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def job_row(found: sa.RowMapping) -> JobRow:
    """A record of `schema.jobs`."""
    fields = dict(found)
    fields["service_class"] = ServiceClass(fields["service_class"])
    fields["status"] = JobStatus(fields["status"])
    return JobRow(**fields)


def step_result_row(found: sa.RowMapping) -> StepResultRow:
    """A record of `schema.step_results`."""
    return StepResultRow(**found)


def stage_attempt_row(found: sa.RowMapping) -> StageAttemptRow:
    """A record of `schema.stage_attempts`."""
    fields = dict(found)
    fields["service_class"] = ServiceClass(fields["service_class"])
    outcome = fields["outcome"]
    fields["outcome"] = None if outcome is None else Outcome(outcome)
    return StageAttemptRow(**fields)


def observation_row(found: sa.RowMapping) -> ObservationRow:
    """A record of `schema.observations`."""
    return ObservationRow(**found)


def decision_row_of(found: sa.RowMapping) -> DecisionRow:
    """A record of `schema.decisions`, without its number."""
    fields = dict(found)
    del fields["id"]
    return DecisionRow(**fields)
