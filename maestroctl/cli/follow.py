"""Follows a job to its end, through a restart of the coordinator, and shows it on the way.

A coordinator that goes away in the middle may be restarting, and resumes its jobs when it does. So
a broken connection is not an end: it is tried again for `PATIENCE_S`, counted from the break.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from maestroctl.cli.api import CoordinatorApi, CoordinatorUnreachable
from maestroctl.domain.outcome import JobStatus
from maestroctl.errors import RequestError

PATIENCE_S = 60.0
_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 2.0

Event = dict[str, Any]


class JobFollower:
    """Waits for one job.

    Args:
        on_event: hears every event of the job that arrives.
        on_trouble: told in one line that the connection broke, and that it is back.
        patience_s: how long a lost coordinator is waited for.
    """

    def __init__(
        self,
        api: CoordinatorApi,
        job_id: str,
        *,
        on_event: Callable[[Event], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._api = api
        self._job_id = job_id
        self._on_event = on_event
        self._on_trouble = on_trouble
        self._patience_s = patience_s
        self._broken_since_s: float | None = None

    async def wait(self) -> dict[str, Any]:
        """The job's document once it is over.

        Raises:
            CoordinatorUnreachable: the coordinator went away and did not come back.
            RequestError: there is no such job, or no permission.
        """
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                job = await self._watch_once()
            except CoordinatorUnreachable as exc:
                self._note_break(exc)
            except RequestError as exc:
                if exc.http_status < 500:
                    raise
                self._note_break(exc)
            else:
                if job is not None:
                    return job
            if self._broken_since_s is None:
                wait_s = _FIRST_WAIT_S
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _watch_once(self) -> dict[str, Any] | None:
        """One event stream from its opening to its end; the job if it is over by then."""
        path = f"/api/jobs/{self._job_id}"
        async with aclosing(self._api.events(f"{path}/events")) as events:
            async for event in events:
                if event is None:
                    # Events from before the stream opened are lost, so the job itself is asked:
                    # now, and again at every heartbeat.
                    job: dict[str, Any] = await self._api.get(path)
                    self._note_return()
                    if is_over(job):
                        return job
                else:
                    self._on_event(event)
                    if event.get("type") == "job_finished":
                        break
        last: dict[str, Any] = await self._api.get(path)
        return last if is_over(last) else None

    def _note_break(self, exc: Exception) -> None:
        now_s = time.monotonic()
        if self._broken_since_s is None:
            self._broken_since_s = now_s
            self._on_trouble(
                f"Lost the coordinator at {self._api.url}; trying again for"
                f" {self._patience_s:.0f} s. It resumes the job when it is back."
            )
        if now_s - self._broken_since_s >= self._patience_s:
            raise CoordinatorUnreachable(
                f"following {self._job_id}: the coordinator at {self._api.url} went away and has"
                f" not come back for {self._patience_s:.0f} s",
                hint="the job is kept: start `maestroctl serve` again, then"
                f" `maestroctl job show {self._job_id}`",
            ) from exc

    def _note_return(self) -> None:
        if self._broken_since_s is not None:
            self._broken_since_s = None
            self._on_trouble("The coordinator is back.")


def is_over(job: dict[str, Any]) -> bool:
    """No event changes the job any more."""
    return JobStatus(job["status"]).is_final
