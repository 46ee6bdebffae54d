"""How the file of a state is opened."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from maestroctl.store import schema
from maestroctl.store.location import StateLocation
from maestroctl.store.sqlite_errors import store_error

_BUSY_TIMEOUT_MS = 5000
"""How long a statement waits for a foreign lock on the file."""
_WAL_KEEP_BYTES = 64 << 20
"""The -wal file is cut back to this after a checkpoint."""


def open_sqlite(location: StateLocation, *, change: bool) -> sa.Engine:
    """Connections to the state.

    Args:
        change: make tables that are missing, bring older ones up to date.

    Raises:
        StoreError: no permission, not a database, damaged, disk full, or made by a newer version.
    """
    engine = _make_engine(location)
    try:
        with engine.begin() as connection:
            schema.prepare_schema(connection, str(location.path), change=change)
    except Exception as error:
        engine.dispose()
        if isinstance(error, sa.exc.DBAPIError):
            raise store_error(f"opening the state {location.path}", error) from error
        raise
    return engine


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
