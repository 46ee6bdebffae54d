"""A log of what a core was told, from which today's core can be run again.

Theory of operation. A core is a function of its start values and of the (event, time) pairs it
was handed, so a log is a header with the former and one line for each of the latter, both JSON.
Lines are buffered and reach the operating system once a second of the core's time, or every
64 KiB; ``kill -9`` loses at most that, and a half-written last line is skipped on reading.

Rotation. A file over `max_bytes` is renamed ``NAME.1`` (older ones move up to ``NAME.keep``, the
oldest is deleted) and a new one begins with the same header and a higher `part`. A log of an
earlier life moves up in the same way. `read_log` reads all parts of one life that are left, oldest
first; a first header with ``part > 0`` says that the beginning is gone, so a replay from it starts
with an empty core in the middle of things.

A log that cannot be written stops (`failure`), the core goes on. The file has mode 0600: events
hold workflow declarations, though never prompts' inputs, outputs or keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from maestroctl.errors import MaestroError
from maestroctl.telemetry.event_codec import (
    Event,
    decode_event,
    decode_value,
    encode_event,
    encode_value,
)
from maestroctl.telemetry.log_header import FORMAT, LogHeader, without_secrets

_BUFFER_BYTES = 64 << 10
_BUFFER_S = 1.0


class EventRecorder:
    """Appends to one log; made once per life of a core.

    Args:
        path: of the newest part; its folder must exist.
        header: its fleet goes through `without_secrets`, its `part` is set here.
        max_bytes: size of a part, about. keep: older parts that are kept.
    """

    def __init__(
        self, path: Path, header: LogHeader, *, max_bytes: int = 64 << 20, keep: int = 4
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        """Why recording stopped; None while it goes on."""
        self.num_lost = 0
        """Events that are missing: all since a failure, and those no JSON can hold."""
        fleet = None if header.fleet is None else without_secrets(header.fleet)
        self._header = replace(header, fleet=fleet, part=0)
        self._max_bytes = max_bytes
        self._keep = keep
        self._buffer: list[bytes] = []
        self._buffered = 0
        """Bytes in `_buffer`."""
        self._written = 0
        """Bytes of the current part, buffer not included."""
        self._flushed_s = float("-inf")
        self._fd = -1
        self._guard(self._begin_log)

    def append(self, event: Event, now_s: float) -> None:
        """Record one pair, before the core is told. Never raises for the disk's sake."""
        if self._fd < 0:
            self.num_lost += 1
            return
        try:
            line = encode_event(event, now_s)
        except UnicodeEncodeError:  # half a surrogate pair in a declaration: no JSON holds that
            self.num_lost += 1
            return
        self._buffer.append(line)
        self._buffered += len(line) + 1
        if self._buffered >= _BUFFER_BYTES or now_s - self._flushed_s >= _BUFFER_S:
            self._flushed_s = now_s
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the operating system; rotate when the part is full."""
        if self._fd >= 0 and self._buffer:
            self._guard(self._write_buffer)

    def close(self) -> None:
        """Flush and close; a second call does nothing."""
        self.flush()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.failure = error
            self.num_lost += len(self._buffer)
            self._forget_buffer()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _begin_log(self) -> None:
        if self.path.exists():
            self._shift()
        self._begin_part()

    def _begin_part(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        self._fd = os.open(self.path, flags, 0o600)
        self._written = 0
        self._write_all(encode_value(self._header) + b"\n")

    def _write_buffer(self) -> None:
        self._write_all(b"\n".join(self._buffer) + b"\n")
        self._forget_buffer()
        if self._written >= self._max_bytes:
            os.close(self._fd)
            self._fd = -1
            self._shift()
            self._header = replace(self._header, part=self._header.part + 1)
            self._begin_part()

    def _write_all(self, data: bytes) -> None:
        self._written += len(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def _forget_buffer(self) -> None:
        self._buffer.clear()
        self._buffered = 0

    def _shift(self) -> None:
        """NAME to NAME.1, NAME.1 to NAME.2, ...; the last one is overwritten."""
        for number in range(self._keep, 0, -1):
            older = _part_path(self.path, number)
            newer = _part_path(self.path, number - 1)
            if newer.exists():
                newer.replace(older)
        if self._keep == 0:
            self.path.unlink()


def read_log(path: Path) -> tuple[LogHeader, Iterator[tuple[Event, float]]]:
    """A log by the path of its newest part: the oldest part's header, then every pair in order.

    Raises:
        MaestroError: it cannot be read; names file and line. Also while iterating.
    """
    parts = [path]
    oldest = newest = _read_header(path)
    stem, number = _split_part(path)
    while oldest.part > 0:
        number += 1
        before = _part_path(stem, number)
        if not before.exists():
            break
        header = _read_header(before)
        if (header.started_at, header.part) != (newest.started_at, oldest.part - 1):
            break  # of another life
        parts.insert(0, before)
        oldest = header
    return oldest, _read_parts(parts)


def _read_parts(parts: list[Path]) -> Iterator[tuple[Event, float]]:
    for part in parts:
        with part.open("rb") as file:
            next(file)
            for number, line in enumerate(file, start=2):
                if not line.endswith(b"\n"):
                    return  # the writer was killed in the middle of it
                try:
                    now_s, event = decode_event(line)
                except (ValueError, msgspec.MsgspecError) as error:
                    message = f"reading the event log {part}, line {number}: {error}"
                    raise MaestroError(message) from error
                yield event, now_s


def _read_header(path: Path) -> LogHeader:
    doing = f"reading the event log {path}"
    try:
        with path.open("rb") as file:
            line = file.readline()
        found = msgspec.json.decode(line, type=_AnyHeader)
        if found.format > FORMAT:
            raise MaestroError(
                f"{doing}: format {found.format}, written by maestroctl {found.maestroctl}; this"
                f" version reads up to {FORMAT}",
                hint="upgrade maestroctl",
            )
        return decode_value(line, LogHeader)
    except OSError as error:
        raise MaestroError(f"{doing}: {error.strerror}") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise MaestroError(f"{doing}: line 1 is no header of such a log: {error}") from error


@dataclass(frozen=True, slots=True)
class _AnyHeader:
    """What every format's header has."""

    format: int
    maestroctl: str


def _part_path(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")


def _split_part(path: Path) -> tuple[Path, int]:
    """Path of the newest part, and the number of this one (0 = it is the newest)."""
    suffix = path.suffix[1:]
    return (path.with_suffix(""), int(suffix)) if suffix.isdigit() else (path, 0)
