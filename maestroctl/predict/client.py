"""The host's side of the predictor process: ask with a budget, go on without when it is late.

A crash, a hang or a flood of the process costs a stage its budget at most, and after
`TRIP_AFTER` misses in a row not even that: the client then answers None at once and tries the
process again after a pause. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.errors import PredictorError
from maestroctl.predict.raw_prediction import RawPrediction
from maestroctl.predict.stage_input import StageInput
from maestroctl.predict.wire import BrokenFrame, pack_frame, read_frame

BUDGET_S = 0.050
TRIP_AFTER = 5
SILENT_TRIPS = 5
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_NONSENSE = (
    *(OSError, asyncio.IncompleteReadError),
    *(ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError),
)
"""What a process that is broken, or is another program, can make of an answer."""


@dataclass(slots=True)
class ClientCounters:
    """Why predictions came or did not; for metrics and ``predictor status``."""

    answered: int = 0
    late: int = 0
    broken: int = 0
    skipped: int = 0

    @property
    def fallbacks(self) -> int:
        """Stages that had to go on without a model."""
        return self.late + self.broken + self.skipped


async def swap_local(socket: Path, local: Path | None, limit_s: float = 60.0) -> None:
    """Have the process at `socket` ask the refitted model at `local` from now on; None = none.

    On a connection of its own: predictions neither wait for it nor fail with it.

    Raises:
        PredictorError: the process did not take it; it goes on with what it had.
    """
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(pack_frame({"id": 0, "local": None if local is None else str(local)}))
                answer = await read_frame(reader)
            finally:
                writer.close()
    except (TimeoutError, *_NONSENSE) as exc:
        raise PredictorError(f"the predictor process does not answer: {exc!r}") from exc
    if answer.get("error") is not None:
        raise PredictorError(f"the predictor process refuses the model: {answer['error']}")


async def is_hung(socket: Path, limit_s: float = 5.0) -> bool:
    """Whether the process at `socket` takes connections and does not answer the simplest frame.

    One that is merely slow answers well within the limit; one that is gone is not hung.
    """
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await asyncio.open_unix_connection(str(socket))
            try:
                writer.write(pack_frame({"id": 0}))
                await read_frame(reader)
            finally:
                writer.close()
    except TimeoutError:
        return True
    except _NONSENSE:
        return False
    return False


class PredictorClient:
    """Asks the process at a socket. One owner task; any number of requests at once.

    Args:
        socket: of the predictor process.
        budget_s: seconds a stage waits at most.
        max_waiting: requests in flight past which a stage does not even ask.
        on_silence: called after each `SILENT_TRIPS` trips without an answer between them.
    """

    def __init__(
        self,
        socket: Path,
        *,
        budget_s: float = BUDGET_S,
        max_waiting: int = 256,
        on_silence: Callable[[], None] | None = None,
    ) -> None:
        self._on_silence = on_silence
        self.counters = ClientCounters()
        self._socket = socket
        self._budget_s = budget_s
        self._max_waiting = max_waiting
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._in_flight = 0
        self._misses = 0
        self._trips = 0
        self._closed_until_s = 0.0

    async def predict(self, stage: StageInput) -> dict[str, RawPrediction]:
        """Raw figures by expert; empty = go on with the fallback. Never raises, never late."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._closed_until_s or self._in_flight >= self._max_waiting:
            self.counters.skipped += 1
            return {}
        self._in_flight += 1
        try:
            async with asyncio.timeout(self._budget_s):
                said = await self._ask(stage)
        except TimeoutError:
            self.counters.late += 1
            self._miss(now_s)
            return {}
        except _NONSENSE:
            self.counters.broken += 1
            self._miss(now_s)
            return {}
        finally:
            self._in_flight -= 1
        self._misses = self._trips = 0
        self.counters.answered += 1
        return said

    async def _ask(self, stage: StageInput) -> dict[str, RawPrediction]:
        writer = await self._connect()
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            writer.write(pack_frame({"id": number, "stage": stage.to_json()}))
            frame = await answer
        finally:
            self._waiting.pop(number, None)
        said = frame.get("said")
        if not isinstance(said, dict):
            raise BrokenFrame(f"no answer in it: {frame.get('error')}")
        return {str(name): RawPrediction.from_json(raw) for name, raw in said.items()}

    def _miss(self, now_s: float) -> None:
        self._misses += 1
        if self._misses >= TRIP_AFTER:
            pause_s = _PAUSES_S[min(self._trips, len(_PAUSES_S) - 1)]
            self._closed_until_s = now_s + self._budget_s + pause_s
            self._trips += 1
            if self._on_silence is not None and self._trips % SILENT_TRIPS == 0:
                self._on_silence()
            # One miss after the pause trips again; a success opens the client fully.
            self._misses = TRIP_AFTER - 1
            self._drop(ConnectionError("the predictor process does not answer"))

    async def _connect(self) -> asyncio.StreamWriter:
        if self._writer is not None and not self._writer.is_closing():
            return self._writer
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._open())
        # Shielded: one stage running out of budget must not cancel it for the others.
        await asyncio.shield(self._connecting)
        if self._writer is None:
            raise ConnectionError("no connection to the predictor process")
        return self._writer

    async def _open(self) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
            self._writer = writer
            self._reading = asyncio.create_task(self._read(reader, writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                answer = self._waiting.get(frame.get("id", -1))
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except _NONSENSE as exc:
            if self._writer is writer:
                self._drop(ConnectionError(f"the predictor process went away: {exc!r}"))

    def _drop(self, reason: ConnectionError) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(reason)

    async def close(self) -> None:
        """Drop the connection and end the reader."""
        self._drop(ConnectionError("the client was closed"))
        for task in (self._reading, self._connecting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
