"""What happens, as small JSON values, to whoever watches: ``--follow``, the demo, dashboards.

Publishing costs nothing while nobody watches. A watcher that does not keep up loses the oldest
events and is told how many; it never slows the coordinator.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from maestroctl.domain.ids import JobId

_KEPT_PER_WATCHER = 2000

Event = dict[str, Any]


class _Watcher:
    def __init__(self, job_id: JobId | None) -> None:
        self.job_id = job_id
        self.events: deque[Event] = deque()
        self.lost = 0
        self.arrived = asyncio.Event()

    def push(self, event: Event) -> None:
        if len(self.events) >= _KEPT_PER_WATCHER:
            self.events.popleft()
            self.lost += 1
        self.events.append(event)
        self.arrived.set()


class EventBus:
    """Publish and watch. All on one event loop."""

    def __init__(self) -> None:
        self._watchers: list[_Watcher] = []

    @property
    def has_watchers(self) -> bool:
        """Whether publishing is worth the effort of making an event."""
        return bool(self._watchers)

    def publish(self, kind: str, job_id: str, **fields: Any) -> None:
        """Tell everybody who watches this job, or all jobs."""
        if not self._watchers:
            return
        event: Event = {"type": kind, "job_id": job_id, **fields}
        for watcher in self._watchers:
            if watcher.job_id in (None, job_id):
                watcher.push(event)

    async def watch(self, job_id: JobId | None) -> AsyncIterator[Event]:
        """Events from now on; those of one job end with its ``job_finished``."""
        watcher = _Watcher(job_id)
        self._watchers.append(watcher)
        try:
            while True:
                await watcher.arrived.wait()
                watcher.arrived.clear()
                if watcher.lost:
                    yield {"type": "events_lost", "count": watcher.lost}
                    watcher.lost = 0
                while watcher.events:
                    event = watcher.events.popleft()
                    yield event
                    if job_id is not None and event["type"] == "job_finished":
                        return
        finally:
            self._watchers.remove(watcher)
