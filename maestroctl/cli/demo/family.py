"""Every process that came from this one, so that none of them outlives it.

The coordinator stops its daemon and the daemon its engines. This is the net below: whatever was
seen as a descendant of this process, and is still there at the very end, is ended here.
"""

from __future__ import annotations

import contextlib
import time

import psutil

_POLITE_S = 15.0
"""A node daemon that gets SIGTERM stops its engines within this."""
_KILL_S = 5.0
_POLL_S = 0.05


class ProcessFamily:
    """Descendants of this process, those that were adopted by others meanwhile included."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], psutil.Process] = {}

    def look(self) -> None:
        """Remember who is there now. Called about once a second and before the end."""
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                self._seen.setdefault((child.pid, child.create_time()), child)

    def alive(self) -> list[psutil.Process]:
        """Those that still run."""
        return [process for process in self._seen.values() if _runs(process)]

    def end(self) -> int:
        """End whoever is left, politely at first. Blocks.

        Returns:
            How many had to be ended.
        """
        self.look()
        left = self.alive()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        self._wait(_POLITE_S)
        self.kill()
        return len(left)

    def kill(self) -> None:
        """End whoever is left, at once. Blocks until they are gone."""
        self.kill_now()
        self._wait(_KILL_S)

    def kill_now(self) -> None:
        """The same without waiting, from within an event loop."""
        with contextlib.suppress(psutil.Error):
            self.look()
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _wait(self, limit_s: float) -> None:
        """Until nobody runs. Looks only: to wait for a child is to take its exit code away from
        the event loop that waits for it too."""
        deadline_s = time.monotonic() + limit_s
        while self.alive() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
