"""A log of what a core was told and what it asked for, from which it can be run again.

Theory of operation. A core is a function of its start values and of the (event, time) pairs it
was handed, so a log is a header with the former and one line for each of the latter, together with
the effects that came of it. Lines are buffered, and go to the file once a second of the core's time
or every 64 KiB; ``kill -9`` loses at most that, and a half-written last line is skipped on reading.

A recorder `in_background` hands its lines to a thread of its own, so that a disk that stalls never
holds up an event loop. One that is too slow for long stops the log, since a log with a hole cannot
be replayed. Whatever goes wrong with a log (`failure`), the core goes on.

The file has mode 0600: events hold workflow declarations, though never prompts' inputs, outputs or
keys. See also: `telemetry.log_parts` (files), `telemetry.log_reader`, `maestroctl.replay`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from maestroctl.telemetry.event_codec import Effect, Event, encode_entry
from maestroctl.telemetry.log_header import LogHeader, model_without_secrets, without_secrets
from maestroctl.telemetry.log_parts import LogParts

_BUFFER_BYTES = 64 << 10
_BUFFER_S = 1.0
_MAX_BEHIND_BYTES = 32 << 20
"""What may wait for a slow disk; some tens of seconds of a busy coordinator."""
_CLOSE_LIMIT_S = 5.0


class EventLog(Protocol):
    """Where a host writes what its core was told."""

    def append(
        self, event: Event, now_s: float, effects: Sequence[Effect] = (), error: str = ""
    ) -> None:
        """One event, with the effects that came of it or the error that did."""
        ...

    def flush(self) -> None:
        """Write what is buffered."""
        ...

    def close(self) -> None:
        """The core has ended."""
        ...


class NoLog:
    """Nothing is recorded."""

    def append(
        self, event: Event, now_s: float, effects: Sequence[Effect] = (), error: str = ""
    ) -> None:
        """Nothing."""

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class EventRecorder:
    """Appends to one log; made once per life of a core.

    Args:
        path: of the newest part; its folder must exist.
        header: its fleet and models lose their secrets, its `part` is set here.
        max_bytes: size of a part, about. keep: older parts that are kept.
        in_background: write from a thread.
    """

    def __init__(
        self,
        path: Path,
        header: LogHeader,
        *,
        max_bytes: int = 64 << 20,
        keep: int = 4,
        in_background: bool = False,
    ) -> None:
        self.path = path
        self.failure: OSError | None = None
        """Why recording stopped; None while it goes on."""
        self.num_lost = 0
        """Events that are missing: those that were not written when it stopped, and all since."""
        fleet = None if header.fleet is None else without_secrets(header.fleet)
        models = tuple(model_without_secrets(model) for model in header.models)
        clean = replace(header, fleet=fleet, models=models)
        self._parts = LogParts(path, clean, max_bytes, keep)
        self._buffer: list[bytes] = []
        self._buffered = 0
        """Bytes in `_buffer`."""
        self._flushed_s = float("-inf")
        self._writer = _Writer(self._write) if in_background else None
        try:
            self._parts.begin()
        except OSError as error:
            self._stop(error, 0)

    def append(
        self, event: Event, now_s: float, effects: Sequence[Effect] = (), error: str = ""
    ) -> None:
        """Record one event and what came of it. Never raises for the disk's sake."""
        if self.failure is not None:
            self.num_lost += 1
            return
        line = encode_entry(event, now_s, effects, error)
        self._buffer.append(line)
        self._buffered += len(line) + 1
        if self._buffered >= _BUFFER_BYTES or now_s - self._flushed_s >= _BUFFER_S:
            self._flushed_s = now_s
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the writer; without a thread, to the operating system."""
        if not self._buffer:
            return
        lines, number = b"\n".join(self._buffer) + b"\n", len(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        if self._writer is None:
            self._write(lines, number)
        elif not self._writer.put(lines, number):
            self._stop(OSError("the disk is too slow for the log"), number)

    def close(self) -> None:
        """Write what is left and close; a second call does nothing."""
        self.flush()
        if self._writer is not None and not self._writer.close():
            return  # the thread hangs in the kernel and has the file
        self._parts.close()

    def _write(self, lines: bytes, number: int) -> None:
        if self.failure is not None:
            self.num_lost += number
            return
        try:
            self._parts.write(lines)
        except OSError as error:
            self._stop(error, number)

    def _stop(self, error: OSError, num_lost: int) -> None:
        self.failure = error
        self.num_lost += num_lost
        if self._writer is None:
            with contextlib.suppress(OSError):
                self._parts.close()


class _Writer:
    """A thread that writes in order; it holds nothing the event loop waits for."""

    def __init__(self, write: _Write) -> None:
        self._write = write
        self._queue: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._behind = 0
        """Bytes handed over and not written; changed under `_lock`."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)
        self._thread.start()

    def put(self, lines: bytes, number: int) -> bool:
        """False when too much waits already."""
        with self._lock:
            if self._behind > _MAX_BEHIND_BYTES:
                return False
            self._behind += len(lines)
        self._queue.put((lines, number))
        return True

    def close(self) -> bool:
        """Whether everything is written, after a few seconds at most."""
        self._queue.put(None)
        self._thread.join(_CLOSE_LIMIT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            lines, number = item
            self._write(lines, number)
            with self._lock:
                self._behind -= len(lines)


class _Write(Protocol):
    def __call__(self, lines: bytes, number: int, /) -> None: ...
