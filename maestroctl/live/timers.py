"""The live hosts' clock, and timers of a core on the event loop (`SetTimer`, `CancelTimer`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from maestroctl.domain.ids import TimerId

core_now_s = time.monotonic
"""The time that live cores are given; uvloop's own clock counts whole milliseconds only."""


class LoopTimers:
    """Fires `on_fire(timer_id)` at the core's time."""

    def __init__(self, on_fire: Callable[[TimerId], None]) -> None:
        self._on_fire = on_fire
        self._handles: dict[TimerId, asyncio.TimerHandle] = {}

    def set(self, timer_id: TimerId, at_s: float) -> None:
        """Fire once at `at_s`; replaces a timer of the same id."""
        self.cancel(timer_id)
        loop = asyncio.get_running_loop()
        in_s = max(0.0, at_s - core_now_s())
        self._handles[timer_id] = loop.call_later(in_s, self._fire, timer_id)

    def cancel(self, timer_id: TimerId) -> None:
        """Forget the timer, if it is still there."""
        handle = self._handles.pop(timer_id, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Forget all."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _fire(self, timer_id: TimerId) -> None:
        del self._handles[timer_id]
        self._on_fire(timer_id)
