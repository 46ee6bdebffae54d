"""States of an engine, and what is read back from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EngineStatus(StrEnum):
    """Life cycle of one engine; the transition table is `scheduler.node.engine_lifecycle`."""

    STOPPED = "stopped"
    STARTING = "starting"
    ACTIVE = "active"
    IDLE = "idle"
    DRAINING = "draining"
    FALLING_ASLEEP = "falling_asleep"
    SLEEPING = "sleeping"
    WAKING = "waking"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    STOPPING = "stopping"
    FAILED = "failed"

    @property
    def is_awake(self) -> bool:
        """Weights and KV are on the device and requests can be forwarded."""
        return self in (EngineStatus.ACTIVE, EngineStatus.IDLE)

    @property
    def is_changing(self) -> bool:
        """A transition that changes memory is under way."""
        return self in (
            EngineStatus.STARTING,
            EngineStatus.FALLING_ASLEEP,
            EngineStatus.WAKING,
            EngineStatus.SUSPENDING,
            EngineStatus.RESUMING,
            EngineStatus.STOPPING,
        )

    @property
    def has_process(self) -> bool:
        """A process is up, or being made or ended."""
        return self not in (EngineStatus.STOPPED, EngineStatus.FAILED)


class ResidencyTier(StrEnum):
    """Where the weights of a model are, nearest first."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """What was read back from an engine after a transition, never assumed.

    Attributes:
        device_bytes: NVML bytes of its processes; on CPU the PSS of its process group.
        host_bytes: PSS of its process group on a GPU node; 0 on a CPU node (already counted).
        kv_pool_bytes: size of its KV pool as the engine states it; 0 while asleep.
    """

    device_bytes: int
    host_bytes: int = 0
    kv_pool_bytes: int = 0
