"""Regular readings of what is really used, for the core's books."""

from __future__ import annotations

import asyncio
import contextlib

from maestroctl.domain.ids import EngineId
from maestroctl.errors import EngineError
from maestroctl.live.gpu import CPU_DEVICE
from maestroctl.live.node.host import NodeHost
from maestroctl.live.node.memory import lowered_budget
from maestroctl.scheduler.events import MemoryRead

_EVERY_LOOKS = 5
_NOISE_BYTES = 128 << 20
"""Changes of the budget below this are other tenants breathing, not news."""


class MemoryWatch:
    """Reads engines and machine every few looks and tells the core what changed."""

    def __init__(self) -> None:
        self._looks = 0
        self._told: int | None = None

    async def look(self, host: NodeHost) -> None:
        """One look; most do nothing."""
        self._looks += 1
        if self._looks % _EVERY_LOOKS:
            return
        held = await self._read_engines(host)
        budgets = {}
        if CPU_DEVICE in host.budgets:
            declared = host.budgets[CPU_DEVICE]
            budget = await asyncio.to_thread(lowered_budget, declared, sum(held.values()))
            if self._told is None or abs(budget - self._told) > _NOISE_BYTES:
                self._told = budget
            budgets[CPU_DEVICE] = self._told
        host.post(MemoryRead(budgets, held))

    async def _read_engines(self, host: NodeHost) -> dict[EngineId, int]:
        held: dict[EngineId, int] = {}
        for engine in host.engines.all():
            if engine.is_managed and not engine.exited.done():
                with contextlib.suppress(EngineError, OSError):
                    held[engine.engine_id] = (await engine.read_memory()).device_bytes
        return held
