"""SQLite's errors in words a user can act on: translated once, at the seam."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa

from maestroctl.errors import StoreError

_DISK_FULL = "no space left on the disk"

_WORDS: dict[int, tuple[str, str]] = {
    sqlite3.SQLITE_PERM: ("permission denied", "check who owns the folder and the file"),
    sqlite3.SQLITE_READONLY: (
        "the file or its folder is read-only",
        "make it writable, or set [coordinator] state to another place",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "the file cannot be opened",
        "check that the folder exists and may be written to",
    ),
    sqlite3.SQLITE_FULL: (_DISK_FULL, "free some space; nothing that was stored is lost"),
    sqlite3.SQLITE_IOERR: (
        "the disk reported an input/output error",
        "check free space and the health of the disk",
    ),
    sqlite3.SQLITE_NOTADB: (
        "the file is not a database",
        "set [coordinator] state to another file, or move this one away",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the database is damaged",
        "move the file away, or restore it from a copy",
    ),
    sqlite3.SQLITE_BUSY: (
        "another process holds the database",
        "stop what else has the file open",
    ),
}

_BAD_VALUE_CODES = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
    sqlite3.SQLITE_TOOBIG,
}


def store_error(doing: str, error: sa.exc.DBAPIError) -> StoreError:
    """The `StoreError` of a driver error.

    Args:
        doing: what was being done, to what, for instance ``opening the state /x/state.db``.
        error: as SQLAlchemy raised it.
    """
    code = getattr(error.orig, "sqlite_errorcode", 0)
    # The shared-memory index could not grow: on a full disk that comes before SQLITE_FULL.
    if code == sqlite3.SQLITE_IOERR_SHMSIZE:
        code = sqlite3.SQLITE_FULL
    words, hint = _WORDS.get(code & 0xFF, (str(error.orig), ""))
    return StoreError(f"{doing}: {words}", hint=hint or None)


def is_bad_value(error: Exception) -> bool:
    """A value that can never be stored, whatever the disk does: a bug of the caller."""
    if isinstance(error, sa.exc.DBAPIError):
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None:  # the driver itself refused to bind: unsupported type
            return True
        return (code & 0xFF) in _BAD_VALUE_CODES
    return isinstance(error, (OverflowError, UnicodeError, TypeError, ValueError))
