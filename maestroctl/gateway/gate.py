"""Counts open requests, turns new ones away when full or draining, and ends all at a stop.

States: OPEN → DRAINING (new requests get 503, open ones finish) → STOPPING (open ones are ended by
us: their tasks are cancelled, and they see `is_stopping`, so that they can tell the caller why
before they close). A task that is cancelled while the gate is not stopping has lost its caller.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from maestroctl.errors import Overloaded, RequestError, Unavailable

RETRY_FULL_S = 1.0
RETRY_DRAINING_S = 5.0


class Gate:
    """Owner of the set of open requests.

    Attributes:
        outcomes: answers sent, by API and status; 499 counts callers who went away.
    """

    def __init__(self, max_held: int) -> None:
        self.max_held = max_held
        self.outcomes: Counter[tuple[str, int]] = Counter()
        self._held: set[asyncio.Task[object]] = set()
        self._watchers: set[asyncio.Task[object]] = set()
        self._draining = False
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def held(self) -> int:
        """Inference requests open now."""
        return len(self._held)

    @property
    def is_draining(self) -> bool:
        """New requests are turned away."""
        return self._draining

    @property
    def is_stopping(self) -> bool:
        """Open requests are being ended."""
        return self._stopping

    def enter(self) -> asyncio.Task[object]:
        """Take a place for the current task; give it back with `leave`.

        Raises:
            Unavailable: the gateway is draining.
            Overloaded: all places are taken.
        """
        if self._draining:
            raise self.closing_error()
        if len(self._held) >= self.max_held:
            raise Overloaded(
                f"{self.max_held} requests are open, which is the limit",
                retry_after_s=RETRY_FULL_S,
            )
        task = _current_task()
        self._held.add(task)
        return task

    def leave(self, task: asyncio.Task[object]) -> None:
        """Give the place back."""
        self._held.discard(task)
        if self._draining and not self._held:
            self._empty.set()

    def watch(self) -> asyncio.Task[object]:
        """Register an event stream of the control API: ended at a stop, not waited for."""
        task = _current_task()
        self._watchers.add(task)
        return task

    def unwatch(self, task: asyncio.Task[object]) -> None:
        """The event stream is over."""
        self._watchers.discard(task)

    def closing_error(self) -> RequestError:
        """What callers are told from now on."""
        return Unavailable(
            "the gateway is shutting down", code="shutting_down", retry_after_s=RETRY_DRAINING_S
        )

    async def drain(self, timeout_s: float) -> bool:
        """Turn new requests away and wait for the open ones.

        Returns:
            Whether all of them finished in time.
        """
        self._draining = True
        if self._held:
            self._empty.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self, timeout_s: float) -> None:
        """End what is open; each request tells its caller and closes."""
        self._draining = self._stopping = True
        tasks = self._held | self._watchers
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task
