"""The files of one event log: a newest part that grows, older parts that are kept or deleted.

A file over its size is renamed ``NAME.1`` (older ones move up to ``NAME.keep``, the oldest is
deleted) and a new one begins with the same header and a higher `part`. A log of an earlier life
moves up in the same way.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from maestroctl.telemetry.event_codec import encode_value
from maestroctl.telemetry.log_header import LogHeader


class LogParts:
    """Writes whole lines; every method may raise `OSError`, after which the log is over.

    Args:
        path: of the newest part; its folder must exist.
        max_bytes: size of a part, about. keep: older parts that are kept.
    """

    def __init__(self, path: Path, header: LogHeader, max_bytes: int, keep: int) -> None:
        self._path = path
        self._header = replace(header, part=0)
        self._max_bytes = max_bytes
        self._keep = keep
        self._written = 0
        """Bytes of the current part."""
        self._fd = -1

    def begin(self) -> None:
        """Move an older log out of the way and write the header."""
        if self._path.exists():
            self._shift()
        self._begin_part()

    def write(self, lines: bytes) -> None:
        """Append; begin a new part when this one is full."""
        self._write_all(lines)
        if self._written >= self._max_bytes:
            self.close()
            self._shift()
            self._header = replace(self._header, part=self._header.part + 1)
            self._begin_part()

    def close(self) -> None:
        """Close the newest part; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_part(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._fd = os.open(self._path, flags, 0o600)
        self._written = 0
        self._write_all(encode_value(self._header) + b"\n")

    def _write_all(self, data: bytes) -> None:
        self._written += len(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def _shift(self) -> None:
        """NAME to NAME.1, NAME.1 to NAME.2, ...; the last one is overwritten."""
        for number in range(self._keep, 0, -1):
            older = part_path(self._path, number)
            newer = part_path(self._path, number - 1)
            if newer.exists():
                newer.replace(older)
        if self._keep == 0:
            self._path.unlink()


def part_path(path: Path, number: int) -> Path:
    """Path of a part by its age; 0 = the newest."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")
