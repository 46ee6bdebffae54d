"""Engine log files: bounded in size, still written to when the daemon is gone.

An engine writes straight to its file, opened for appending, and not through a pipe: a pipe would
break with the daemon and take the engine along, and engines are meant to be adopted again. So the
file cannot be renamed away under its writer; it is copied and then emptied instead.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

START_MARK = "=== maestroctl: engine start"
"""Begins the line that a start writes, before the engine itself writes any."""
_TAIL_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Bounds of one engine's logs.

    Attributes:
        max_bytes: size at which the current file is rotated.
        keep: number of older files kept beside it.
    """

    max_bytes: int = 16 * 1024 * 1024
    keep: int = 3


def rotate_log(path: Path, limits: LogLimits) -> bool:
    """Rotate a log that has grown past its limit: `x.log` to `x.log.1`, `.1` to `.2`, and so on.

    Lines written between the copy and the emptying are lost; that window is a few milliseconds
    and logs are an aid, not a record.

    Returns:
        Whether it was rotated.
    """
    try:
        if path.stat().st_size <= limits.max_bytes:
            return False
    except OSError:
        return False
    for number in range(limits.keep, 0, -1):
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        older = path.with_name(f"{path.name}.{number}")
        if not newer.exists():
            continue
        if number == 1:
            shutil.copyfile(newer, older)
        else:
            os.replace(newer, older)
    os.truncate(path, 0)
    return True


def read_last_lines(path: Path, max_lines: int = 20) -> tuple[str, ...]:
    """The end of a log, for an error message; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple(lines[-max_lines:])


def read_lines_since_start(path: Path, max_lines: int = 20) -> tuple[str, ...]:
    """The end of a log, no further back than the last start of its engine."""
    lines = read_last_lines(path, max_lines)
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(START_MARK):
            return lines[index + 1 :]
    return lines
