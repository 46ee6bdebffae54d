"""Tables of the state database, and the check that a database is one of ours.

Portable on purpose: plain column types, no foreign keys (rows of one transaction may come in any
order, and pruning decides itself what hangs on what), JSON kept as text. Every statement is built
by SQLAlchemy Core; the one place that knows a dialect's upsert is `upsert_statement`.

A change to a table raises `SCHEMA_VERSION` and adds an entry to `MIGRATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import sqlalchemy as sa

from maestroctl.errors import StoreError

SCHEMA_VERSION = 2


def _let_tool_calls_be_unknown(connection: sa.Connection) -> None:
    """1 to 2: version 1 said "not called" where an answer was cut before anybody could know."""
    if connection.dialect.name == "sqlite":  # which cannot drop a NOT NULL
        names = ", ".join(observations.columns.keys())
        connection.execute(sa.text("ALTER TABLE observations RENAME TO observations_1"))
        connection.execute(sa.text("DROP INDEX observations_by_time"))
        observations.create(connection)
        connection.execute(
            sa.text(f"INSERT INTO observations ({names}) SELECT {names} FROM observations_1")
        )
        connection.execute(sa.text("DROP TABLE observations_1"))
    else:
        connection.execute(
            sa.text("ALTER TABLE observations ALTER COLUMN tool_called DROP NOT NULL")
        )
    cut = observations.update().where(observations.c.censored)
    connection.execute(cut.values(tool_called=None))


MIGRATIONS: Mapping[int, Callable[[sa.Connection], None]] = {1: _let_tool_calls_be_unknown}
"""Version -> function that brings a database of that version to the next one."""

metadata = sa.MetaData()

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("submitted_at", sa.Float(53), nullable=False),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("workflow_json", sa.Text, nullable=False),
    sa.Column("input_json", sa.Text, nullable=False),
    sa.Column("variables_json", sa.Text, nullable=False),
    sa.Column("service_class", sa.Text, nullable=False),
    sa.Column("deadline_s", sa.Float(53)),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("output", sa.Text),
    sa.Column("finished_at", sa.Float(53)),
    sa.Column("external", sa.Boolean, nullable=False),
    sa.Index("jobs_by_status", "status", "submitted_at"),
    sa.Index("jobs_by_time", "submitted_at"),
)

step_results = sa.Table(
    "step_results",
    metadata,
    sa.Column("job_id", sa.Text, primary_key=True),
    sa.Column("step", sa.Text, primary_key=True),
    sa.Column("visit", sa.Integer, primary_key=True),
    sa.Column("item", sa.Integer, primary_key=True),
    sa.Column("num_items", sa.Integer, nullable=False),
    sa.Column("output", sa.Text, nullable=False),
    sa.Column("finished_at", sa.Float(53), nullable=False),
    sa.Column("repeat", sa.Boolean, nullable=False),
)

stage_attempts = sa.Table(
    "stage_attempts",
    metadata,
    sa.Column("stage_id", sa.Text, primary_key=True),
    sa.Column("job_id", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("arrived_at", sa.Float(53), nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("service_class", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("dispatched_at", sa.Float(53)),
    sa.Column("first_byte_at", sa.Float(53)),
    sa.Column("ended_at", sa.Float(53)),
    sa.Column("prompt_tokens", sa.BigInteger),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("cached_tokens", sa.BigInteger),
    sa.Column("activation", sa.Text, nullable=False),
    sa.Column("activation_s", sa.Float(53), nullable=False),
    sa.Column("streamed", sa.Boolean, nullable=False),
    sa.Column("outcome", sa.Text),
    sa.Index("stage_attempts_by_job", "job_id"),
)

observations = sa.Table(
    "observations",
    metadata,
    sa.Column("stage_id", sa.Text, primary_key=True),
    sa.Column("at", sa.Float(53), nullable=False),
    sa.Column("workflow", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("features_json", sa.Text, nullable=False),
    sa.Column("predicted_q50", sa.Float(53), nullable=False),
    sa.Column("predicted_q90", sa.Float(53), nullable=False),
    sa.Column("predicted_p_tool", sa.Float(53), nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("output_tokens", sa.BigInteger, nullable=False),
    sa.Column("tool_called", sa.Boolean),
    sa.Column("censored", sa.Boolean, nullable=False),
    sa.Index("observations_by_time", "at"),
)

decisions = sa.Table(
    "decisions",
    metadata,
    # SQLite gives rising row ids only to a column that is exactly INTEGER.
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("at", sa.Float(53), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("choice", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail_json", sa.Text, nullable=False),
    sa.Index("decisions_by_subject", "subject"),
)


def upsert_statement(table: sa.Table, dialect: sa.Dialect) -> tuple[str, tuple[str, ...]]:
    """SQL that inserts one row, replacing the row of the same primary key.

    A table whose primary key is made by the database (`decisions`) only gains rows.

    Args:
        table: where to.
        dialect: of the database; its placeholders are positional.

    Returns:
        A statement for `Connection.exec_driver_sql`, and the columns in the order in which it
        takes their values. ``ON CONFLICT ... DO UPDATE`` is spelled alike in SQLite and
        PostgreSQL; a dialect that spells it otherwise gets its own form here.
    """
    columns = tuple(column.name for column in table.columns if column.name != "id")
    insert = table.insert().inline().values({name: sa.bindparam(name) for name in columns})
    statement = str(insert.compile(dialect=dialect))
    key = [column.name for column in table.primary_key]
    if key != ["id"]:
        quote = dialect.identifier_preparer.quote
        target = ", ".join(quote(name) for name in key)
        changed = ", ".join(
            f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in key
        )
        statement += f" ON CONFLICT ({target}) DO UPDATE SET {changed}"
    return statement, columns


def prepare_schema(connection: sa.Connection, where: str, *, change: bool = True) -> None:
    """Create the tables in an empty database, or bring those of an older version up to date.

    Args:
        connection: inside a transaction.
        where: how to call the database in an error.
        change: False = only check, for somebody who reads beside the owner.

    Raises:
        StoreError: made by a newer maestroctl, or a database of something else.
    """
    names = set(sa.inspect(connection).get_table_names())
    if not names and change:
        metadata.create_all(connection)
        connection.execute(meta.insert().values(key="schema_version", value=str(SCHEMA_VERSION)))
        connection.execute(meta.insert().values(key="epoch", value="0"))
        return
    found = _read_version(connection, names)
    if found is None:
        raise StoreError(
            f"opening the state {where}: it is a database of something else (tables:"
            f" {', '.join(sorted(names)[:5]) or 'none'})",
            hint="set [coordinator] state to another file",
        )
    if found > SCHEMA_VERSION:
        raise StoreError(
            f"opening the state {where}: it has schema version {found}, written by a newer"
            f" maestroctl; this one understands up to {SCHEMA_VERSION}",
            hint="upgrade maestroctl, or set [coordinator] state to another file",
        )
    if found < SCHEMA_VERSION and change:
        for version in range(found, SCHEMA_VERSION):
            MIGRATIONS[version](connection)
        connection.execute(
            meta.update().where(meta.c.key == "schema_version").values(value=str(SCHEMA_VERSION))
        )


def _read_version(connection: sa.Connection, names: set[str]) -> int | None:
    """Schema version of a database of ours; None when it is not one."""
    if not {"meta", "jobs"} <= names:
        return None
    query = sa.select(meta.c.value).where(meta.c.key == "schema_version")
    try:
        text = connection.execute(query).scalar()
    except sa.exc.DatabaseError:  # a `meta` of somebody else
        return None
    return int(text) if text is not None and text.isdigit() else None
