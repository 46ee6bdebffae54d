"""Real memory of the stub engine: private anonymous pages, every one of them touched.

A supervisor that reads the proportional set size of the process sees exactly these bytes come and
go, which is what its bookings are checked against. Pages are private, so a forked child does not
share them, and dropping them unmaps: nothing stays in an allocator's free list.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Iterable

TAGS = ("weights", "kv_cache")
"""The tags of vLLM's wake-up call."""

TOUCH_STEP_BYTES = 16 * 1024 * 1024
"""Bytes touched between two turns of the event loop, about 5 ms: health checks stay answered."""


class EngineMemory:
    """Weights and KV cache of one engine.

    ``resident`` is what the engine believes; the mappings are what the machine sees. They differ
    when the engine lies about sleep, or returns memory late.
    """

    def __init__(self, weights_bytes: int, kv_bytes: int) -> None:
        self._sizes = {"weights": weights_bytes, "kv_cache": kv_bytes}
        self._maps: dict[str, mmap.mmap] = {}
        self._late: dict[str, asyncio.TimerHandle] = {}  # unmappings still to come
        self._resident: set[str] = set()

    @property
    def usable(self) -> bool:
        """Whether weights and KV cache are both in place, so that a token can be made."""
        return len(self._resident) == len(TAGS)

    def is_resident(self, tag: str) -> bool:
        """Whether the engine believes to hold this tag."""
        return tag in self._resident

    def held_bytes(self, tag: str) -> int:
        """Bytes really mapped for this tag."""
        return len(self._maps[tag]) if tag in self._maps else 0

    def size_bytes(self, tag: str) -> int:
        """Bytes this tag takes when it is in place."""
        return self._sizes[tag]

    async def allocate(self, tags: Iterable[str]) -> None:
        """Map and touch what is missing."""
        for tag in tags:
            if (late := self._late.pop(tag, None)) is not None:
                late.cancel()
            if tag not in self._maps and self._sizes[tag] > 0:
                self._maps[tag] = await _touched_map(self._sizes[tag])
            self._resident.add(tag)

    def release(self, tags: Iterable[str], *, lie: bool = False, late_s: float = 0.0) -> None:
        """Unmap.

        Args:
            tags: which parts.
            lie: believe them gone but keep the pages.
            late_s: unmap so many seconds later.
        """
        for tag in tags:
            self._resident.discard(tag)
            if lie or tag not in self._maps:
                continue
            if late_s > 0:
                loop = asyncio.get_running_loop()
                self._late[tag] = loop.call_later(late_s, self._unmap, tag)
            else:
                self._unmap(tag)

    def _unmap(self, tag: str) -> None:
        self._late.pop(tag, None)
        self._maps.pop(tag).close()


async def _touched_map(size: int) -> mmap.mmap:
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, size, TOUCH_STEP_BYTES):
        end = min(start + TOUCH_STEP_BYTES, size)
        count = len(range(start, end, mmap.PAGESIZE))
        pages[start : end : mmap.PAGESIZE] = b"\x01" * count
        await asyncio.sleep(0)
    return pages
