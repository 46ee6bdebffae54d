"""Exclusive ownership of a state database: one coordinator at a time.

An advisory ``flock`` on ``<database>.lock``, with the owner's pid inside for the error message.
The kernel drops the lock with the last descriptor of the owner, so ``kill -9`` leaves nothing to
clean up and a recycled pid means nothing. The descriptor is close-on-exec: engines that the owner
starts do not keep it. The file itself stays, because removing it would let two owners lock two
different files of the same name.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from maestroctl.errors import StateLocked, StoreError


class StateLock:
    """Held from construction until `release` or the end of the process.

    Args:
        database: path of the database file; links are followed, so that two names of one file
            are one lock.

    Raises:
        StateLocked: another process holds it; names its pid.
        StoreError: the lock file cannot be opened.
    """

    def __init__(self, database: Path) -> None:
        self.path = Path(os.path.realpath(database) + ".lock")
        try:
            self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(
                f"locking the state {database}: cannot open {self.path}: {error.strerror}",
                hint="check the permissions of the folder, or set [coordinator] state",
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            self._fd = None
            raise StateLocked(
                f"another coordinator (pid {owner or 'unknown'}) owns the state {database}",
                hint="stop it first, or give this one its own [coordinator] state",
            ) from error
        # The pid is for the other's error message only; on a full disk we own the lock without.
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; a second call does nothing."""
        if self._fd is not None:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
