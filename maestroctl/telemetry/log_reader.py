"""Reads an event log: all parts of one life that are left, oldest first.

A first header with ``part > 0`` says that the beginning was deleted, so a replay from it would
start with an empty core in the middle of things. A half-written last line, which is what
``kill -9`` leaves, ends the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from maestroctl.errors import ConfigError, MaestroError
from maestroctl.telemetry.event_codec import Entry, decode_entry, decode_value
from maestroctl.telemetry.log_header import FORMAT, LogHeader
from maestroctl.telemetry.log_parts import part_path


def read_log(path: Path) -> tuple[LogHeader, Iterator[Entry]]:
    """A log by the path of its newest part: the oldest part's header, then every entry in order.

    Raises:
        MaestroError: it cannot be read; names file and line. Also while iterating.
    """
    parts = [path]
    oldest = newest = _read_header(path)
    stem, number = _split_part(path)
    while oldest.part > 0:
        number += 1
        before = part_path(stem, number)
        if not before.exists():
            break
        header = _read_header(before)
        if (header.started_at, header.part) != (newest.started_at, oldest.part - 1):
            break  # of another life
        parts.insert(0, before)
        oldest = header
    return oldest, _read_parts(parts)


def _read_parts(parts: list[Path]) -> Iterator[Entry]:
    for part in parts:
        with part.open("rb") as file:
            next(file)
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    return  # the writer was killed in the middle of it
                try:
                    entry = decode_entry(line)
                except (ValueError, msgspec.MsgspecError) as error:
                    message = f"reading the event log {part}, line {number}: {error}"
                    raise MaestroError(message) from error
                yield entry


def _read_header(path: Path) -> LogHeader:
    doing = f"reading the event log {path}"
    try:
        with path.open("rb") as file:
            line = file.readline()
        found = msgspec.json.decode(line, type=_AnyHeader)
        if found.format != FORMAT:
            newer = found.format > FORMAT
            raise MaestroError(
                f"{doing}: it has format {found.format}, written by maestroctl"
                f" {found.maestroctl}; this version reads format {FORMAT}",
                hint="upgrade maestroctl"
                if newer
                else f"replay it with maestroctl {found.maestroctl}, which wrote it",
            )
        return decode_value(line, LogHeader)
    except OSError as error:
        raise ConfigError(f"{doing}: {error.strerror}") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{doing}: line 1 is no header of such a log: {error}") from error


@dataclass(frozen=True, slots=True)
class _AnyHeader:
    """What every format's header has."""

    format: int
    maestroctl: str


def _split_part(path: Path) -> tuple[Path, int]:
    """Path of the newest part, and the number of this one (0 = it is the newest)."""
    suffix = path.suffix[1:]
    return (path.with_suffix(""), int(suffix)) if suffix.isdigit() else (path, 0)
