"""One stub engine: options, switches, memory and generation, and the rules that join them.

Calls that move memory are served one at a time. Sleeping pauses first and waking resumes last;
``is_sleeping`` is also true while merely paused, as in vLLM.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, NoReturn

from maestroctl.testing.stub_engine.faults import Faults
from maestroctl.testing.stub_engine.generation import Generation, PauseState
from maestroctl.testing.stub_engine.memory import TAGS, EngineMemory
from maestroctl.testing.stub_engine.options import StubOptions
from maestroctl.testing.stub_engine.text import Limits

SEEN_REQUESTS = 64
"""Requests kept for ``GET /stub/requests``."""

SEEN_BODY_BYTES = 64 * 1024
"""Longer bodies are not kept."""

EXIT_DIED = 3
"""Exit status of an engine that killed itself."""


class WakeFailed(Exception):
    """The switch ``fail_wake`` acted; answered with 500."""


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A generation request as it arrived, for tests of what a proxy forwards."""

    path: str
    headers: dict[str, str]
    body: bytes


class StubEngine:
    """The state of the process. Must be made inside a running event loop."""

    def __init__(self, options: StubOptions) -> None:
        self.options = options
        self.faults = Faults.from_options(options)
        self.memory = EngineMemory(options.weights_bytes, options.kv_bytes)
        self.generation = Generation(
            options,
            self.faults,
            usable=lambda: self.memory.usable,
            die=self.die,
            loop=asyncio.get_running_loop(),
        )
        self.seen: deque[SeenRequest] = deque(maxlen=SEEN_REQUESTS)
        self.sleep_level: int | None = None
        self._sleeping_tags: set[str] = set()
        self._weights_valid = True  # false after sleep level 2 until they are reloaded
        self._dropped = False  # by the worker extension, not by /sleep
        self._control = asyncio.Lock()

    @property
    def is_paused(self) -> bool:
        """Whether new requests wait."""
        return self.generation.pause_state is not PauseState.UNPAUSED

    @property
    def is_sleeping(self) -> bool:
        """vLLM's answer: asleep, wholly or partly, or only paused."""
        return self.is_paused or bool(self._sleeping_tags)

    @property
    def limits(self) -> Limits:
        """What bounds and varies outputs now."""
        return Limits(
            model=self.options.model,
            max_model_len=self.options.max_model_len,
            noise=not self._weights_valid,
        )

    def die(self, reason: str) -> NoReturn:
        """End the process at once, as a crash would: no goodbye to any client."""
        print(f"ERROR EngineCore died: {reason}", file=sys.stderr, flush=True)
        os._exit(EXIT_DIED)

    async def load(self) -> None:
        """Put weights and KV cache in place."""
        await self.memory.allocate(TAGS)

    async def pause(self, mode: str, *, clear_cache: bool) -> None:
        """Pause; returns when complete."""
        await self.generation.pause(mode, clear_cache=clear_cache)

    async def sleep(self, level: int, mode: str) -> None:
        """Pause, then drop memory. Level 0 only pauses; after level 2 weights must be reloaded."""
        await self.generation.pause(mode, clear_cache=level >= 1)
        async with self._control:
            if level < 1 or "weights" in self._sleeping_tags:
                return
            self.sleep_level = level
            self._sleeping_tags.update(TAGS)
            self._weights_valid = self._weights_valid and level < 2
            self._release()

    async def wake(self, tags: list[str] | None) -> bool:
        """Put memory back and resume; returns whether the engine is wholly awake.

        Raises:
            WakeFailed: the switch ``fail_wake`` is set; nothing has changed.
        """
        async with self._control:
            wanted = [tag for tag in TAGS if tags is None or tag in tags]
            wanted = [tag for tag in wanted if tag in self._sleeping_tags]
            if wanted:
                await self._restore(wanted)
                self._sleeping_tags.difference_update(wanted)
            if self._sleeping_tags:
                return False
            self.sleep_level = None
            self.generation.resume()
            return True

    async def call_worker(self, method: str) -> dict[str, Any] | None:
        """A call through ``/collective_rpc``; what one worker answers.

        Raises:
            LookupError: no such method.
        """
        async with self._control:
            if method == "reload_weights":
                self._weights_valid = True
                return None
            if method == "maestro_drop":
                return self._worker_drop()
            if method == "maestro_restore":
                return await self._worker_restore()
            if method == "maestro_status":
                return self.worker_status()
        raise LookupError(f"'Worker' object has no attribute '{method}'")

    def worker_status(self) -> dict[str, Any]:
        """What the worker extension reports; bytes are those of its weights and KV cache."""
        weights, kv = self.memory.is_resident("weights"), self.memory.is_resident("kv_cache")
        return {
            "ok": True,
            "weights": weights,
            "kv": kv,
            "weights_bytes": self.memory.size_bytes("weights") if weights else 0,
            "kv_bytes": self.memory.size_bytes("kv_cache") if kv else 0,
        }

    def _worker_drop(self) -> dict[str, Any]:
        if self.generation.running:
            return {**self.worker_status(), "ok": False, "error": "requests are running"}
        self._dropped = True
        self._release()
        return self.worker_status()

    async def _worker_restore(self) -> dict[str, Any]:
        if self._dropped:
            try:
                await self._restore(list(TAGS))
            except WakeFailed as error:
                return {**self.worker_status(), "ok": False, "error": str(error)}
            self._dropped = False
        return self.worker_status()

    def _release(self) -> None:
        self.memory.release(
            TAGS, lie=self.faults.lie_about_sleep, late_s=self.faults.return_memory_late_s
        )

    async def _restore(self, tags: list[str]) -> None:
        if self.faults.take_wake_failure():
            raise WakeFailed("out of memory while waking up")
        await asyncio.sleep(self.faults.wake_delay_s)
        await self.memory.allocate(tags)
