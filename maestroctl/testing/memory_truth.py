"""What the processes of a node really hold, told from what their host was asked to do alone.

The other side of the ledger in `scheduler.node.books`: nothing here is read from the core's
tables, only from effects and their results, so a booking that the core forgot is found. A process
holds the memory of the higher end of a transition until the host reports it done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import assert_never

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, DeviceName, EngineId
from maestroctl.domain.llm import ModelProfile
from maestroctl.scheduler.effects import (
    ResumeEngine,
    SetKvLimit,
    SleepEngine,
    StartEngine,
    StopEngine,
    SuspendEngine,
    WakeEngine,
)
from maestroctl.testing.builders import EngineEffect


@dataclass(slots=True)
class Process:
    """One engine process.

    Attributes:
        awake: it holds weights, peak and KV on its devices, or is about to.
        on_host: its weights are in host memory, or are about to be.
        seen_bytes: per device, what it was last seen to hold at least; what a sleeping engine
            holds beyond its profile is part of what it holds awake.
    """

    profile: ModelProfile
    generation: int
    devices: tuple[DeviceName, ...]
    kv_limit_bytes: int
    starting: bool = True
    awake: bool = True
    on_host: bool = False
    suspended: bool = False
    seen_bytes: int = 0

    def each_bytes(self) -> int:
        """Bytes on each of its devices."""
        if not self.awake:
            return max(self.profile.context_bytes, self.seen_bytes)
        start_peak = self.profile.start_peak_bytes if self.starting else 0
        return max(self.profile.awake_bytes + self.kv_limit_bytes + start_peak, self.seen_bytes)


class MemoryTruth:
    """All processes of a node.

    Args:
        profiles: of the managed engines.
        host_sleepers: engines that keep their weights in host memory when they are suspended.
    """

    def __init__(
        self, profiles: Mapping[EngineId, ModelProfile], host_sleepers: Collection[EngineId]
    ) -> None:
        self._profiles = profiles
        self._host_sleepers = host_sleepers
        self.processes: dict[EngineId, Process] = {}

    def begin(self, effect: EngineEffect | SetKvLimit) -> None:
        """The host sets about an effect."""
        match effect:
            case StartEngine():
                self.processes[effect.engine_id] = Process(
                    self._profiles[effect.engine_id],
                    effect.generation,
                    tuple(effect.devices),
                    effect.kv_limit_bytes,
                )
            case WakeEngine() | ResumeEngine():
                self._of(effect.engine_id).awake = True
            case SleepEngine():
                self._of(effect.engine_id).on_host = effect.tier is ResidencyTier.HOST
            case SuspendEngine():
                self._of(effect.engine_id).on_host = effect.engine_id in self._host_sleepers
            case SetKvLimit():
                self._of(effect.engine_id).kv_limit_bytes = effect.kv_limit_bytes
            case StopEngine():
                pass  # holds what it holds until it is gone
            case _:
                assert_never(effect)

    def finish(self, effect: EngineEffect) -> None:
        """The host carried the effect out."""
        if isinstance(effect, StopEngine):
            self.remove(effect.engine_id)
            return
        process = self._of(effect.engine_id)
        process.starting = False
        process.seen_bytes = 0
        process.awake = not isinstance(effect, SleepEngine | SuspendEngine)
        process.suspended = isinstance(effect, SuspendEngine)
        if process.awake:
            process.on_host = False

    def remove(self, engine_id: EngineId) -> None:
        """The process is gone."""
        self.processes.pop(engine_id, None)

    def take_more(self, engine_id: EngineId, device_bytes: int) -> None:
        """It is seen to hold `device_bytes` over its devices, whatever its profile says."""
        process = self._of(engine_id)
        process.seen_bytes = -(-device_bytes // len(process.devices))

    def status(self, engine_id: EngineId) -> EngineStatus:
        """What a new daemon would find of an engine at rest."""
        process = self._of(engine_id)
        if process.suspended:
            return EngineStatus.SUSPENDED
        return EngineStatus.IDLE if process.awake else EngineStatus.SLEEPING

    def holds(self, engine_id: EngineId) -> dict[DeviceName, int]:
        """Bytes per device, the host included."""
        process = self._of(engine_id)
        held = dict.fromkeys(process.devices, process.each_bytes())
        if process.on_host:
            held[HOST_DEVICE] = process.profile.host_asleep_bytes
        return held

    def total(self) -> Counter[DeviceName]:
        """Bytes per device that all processes hold together."""
        total: Counter[DeviceName] = Counter()
        for engine_id in self.processes:
            total.update(self.holds(engine_id))
        return total

    def _of(self, engine_id: EngineId) -> Process:
        return self.processes[engine_id]
