"""How the process collects cyclic garbage: often and little, never all of it in the way.

A full collection walks every container there is: with 100,000 waiting stages that takes 120 to
300 ms, in the middle of a decision. Almost nothing here is garbage that only a walk can find:
objects die by their reference counts. So the young generations are kept small (a walk of a few
thousand objects, a millisecond or two), and the old one is walked by `Tidy` when little is alive.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

YOUNG, MIDDLE = 2_000, 4
"""New objects per walk of the youngest generation, and such walks per walk of the second."""
NEVER = 1 << 30
QUIET_OBJECTS = 3_000
"""Live stages and requests up to which a full walk takes no longer than 25 ms."""
GROWTH_BYTES = 256 << 20
"""Memory gained since the last full walk from which on one is due whatever is alive."""


def calm() -> None:
    """Keep what is there out of every later walk, and never walk the old generation by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


class Tidy:
    """Decides when the old generation is walked; ask it every few seconds.

    Args:
        num_live: stages and requests that are alive now.
        resident: bytes of memory the process holds.
    """

    def __init__(
        self, num_live: Callable[[], int], resident: Callable[[], int] | None = None
    ) -> None:
        self._num_live = num_live
        self._resident = resident or resident_bytes
        self._after_bytes = self._resident()

    def look(self) -> bool:
        """Walk the old generation if it is cheap or due. Returns whether it did."""
        grown = self._resident() - self._after_bytes
        if self._num_live() > QUIET_OBJECTS and grown < max(GROWTH_BYTES, self._after_bytes // 2):
            return False
        gc.collect()
        self._after_bytes = self._resident()
        return True


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
