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
class EngineAbilities:
    """What one engine can do, by its kind and version; a missing ability removes that rung.

    Attributes:
        managed: ours to start, sleep and stop; False for endpoints and attached engines, which
            are never booked, never stopped and count as awake.
        can_sleep_host: keeps its weights in host memory while asleep.
        can_sleep_disk: drops its weights while asleep and reads them again.
        can_suspend: freezes open requests, drops weights and KV, and goes on later.
        elastic_kv: its KV limit can be changed while it is awake.
    """

    managed: bool = True
    can_sleep_host: bool = False
    can_sleep_disk: bool = False
    can_suspend: bool = False
    elastic_kv: bool = False

    @property
    def can_sleep(self) -> bool:
        """It has some way to sleep."""
        return self.can_sleep_host or self.can_sleep_disk


@dataclass(frozen=True, slots=True)
class EngineReadings:
    """What was read back from an engine after a transition, never assumed.

    Attributes:
        device_bytes: NVML bytes of its processes, summed over its devices; on CPU the PSS of its
            process group.
        host_bytes: PSS of its process group on a GPU node; 0 on a CPU node (already counted).
        kv_pool_bytes: size of its KV pool as the engine states it; 0 while asleep.
    """

    device_bytes: int
    host_bytes: int = 0
    kv_pool_bytes: int = 0
