"""The event kernel: a heap of (time, sequence number, action) and a clock that jumps.

Events of the same time run in the order in which they were asked for, so a run is a function of
its inputs. A cancelled event stays in the heap and is skipped when its time comes.

Ticks happen again and again whatever else does (`EventLoop.tick`). What they bring about may be
work, so they are waited for, but not for ever: `run` ends where they alone were left too long.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]


class Handle:
    """A pending event; `cancel` makes it never happen."""

    __slots__ = ("action", "args", "is_tick")

    def __init__(self, action: Action, args: tuple[Any, ...], is_tick: bool = False) -> None:
        self.action: Action | None = action
        self.args = args
        self.is_tick = is_tick

    def cancel(self) -> None:
        """Forget the event; harmless when it has happened."""
        self.action = None


class EventLoop:
    """A clock in seconds and what is still to happen.

    Attributes:
        now_s: simulated time; never falls.
        num_events: events that happened.
    """

    __slots__ = ("_heap", "_num_ticks", "_number", "_stopped", "_worked_s", "now_s", "num_events")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Handle]] = []
        self._number = 0
        self._num_ticks = 0
        self._worked_s = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Let `run` return after the event in hand."""
        self._stopped = True

    def at(self, at_s: float, action: Action, *args: Any) -> Handle:
        """Call `action(*args)` at `at_s`, or now (after what is pending now) when that is past."""
        handle = Handle(action, args)
        self._number += 1
        if at_s < self.now_s:
            at_s = self.now_s
        heappush(self._heap, (at_s, self._number, handle))
        return handle

    def after(self, delay_s: float, action: Action, *args: Any) -> Handle:
        """Call `action(*args)` in `delay_s` seconds."""
        return self.at(self.now_s + delay_s, action, *args)

    def tick(self, delay_s: float, action: Action, *args: Any) -> None:
        """The same for what comes again and again, and keeps nothing going."""
        self._number += 1
        self._num_ticks += 1
        at_s = self.now_s + delay_s
        heappush(self._heap, (at_s, self._number, Handle(action, args, is_tick=True)))

    def run(self, until_s: float = float("inf"), patience_s: float = float("inf")) -> None:
        """Let events happen until none is left, `stop` is called or `until_s` is reached.

        Args:
            patience_s: it also ends where ticks alone are left, this long after anything else.
        """
        heap = self._heap
        self._stopped = False
        while heap and not self._stopped and heap[0][0] <= until_s:
            if len(heap) == self._num_ticks and heap[0][0] - self._worked_s > patience_s:
                return
            at_s, _, handle = heappop(heap)
            action = handle.action
            if handle.is_tick:
                self._num_ticks -= 1
            elif action is not None:
                self._worked_s = at_s
            if action is None:
                continue
            self.now_s = at_s
            self.num_events += 1
            action(*handle.args)


class Timers:
    """Named timers of one core: `SetTimer` and `CancelTimer` on the loop."""

    __slots__ = ("_handles", "_loop", "_on_fire")

    def __init__(self, loop: EventLoop, on_fire: Callable[[Any], None]) -> None:
        self._loop = loop
        self._on_fire = on_fire
        self._handles: dict[str, Handle] = {}

    def set(self, timer_id: str, at_s: float) -> None:
        """Fire once at `at_s`; replaces a timer of the same id."""
        self.cancel(timer_id)
        self._handles[timer_id] = self._loop.at(at_s, self._fire, timer_id)

    def cancel(self, timer_id: str) -> None:
        """Forget the timer, if it is there."""
        handle = self._handles.pop(timer_id, None)
        if handle is not None:
            handle.cancel()

    def _fire(self, timer_id: str) -> None:
        del self._handles[timer_id]
        self._on_fire(timer_id)
