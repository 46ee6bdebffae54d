"""What one engine holds, per device and on the host, in a given status (terms of Eq 4).

A transition that takes memory is booked with the footprint of its end before it begins; one that
frees memory keeps the footprint of its start until the verified reading has come.
"""

from __future__ import annotations

from collections.abc import Sequence

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, DeviceName
from maestroctl.domain.llm import ModelProfile
from maestroctl.estimate.memory_need import (
    estimate_asleep_bytes,
    estimate_awake_bytes,
    estimate_host_bytes,
    estimate_starting_bytes,
)

_ASLEEP = frozenset({EngineStatus.SLEEPING, EngineStatus.SUSPENDED})
# Host memory is held from the moment a sleep begins until a wake is verified.
_HOLDS_HOST = frozenset(
    {
        EngineStatus.FALLING_ASLEEP,
        EngineStatus.SLEEPING,
        EngineStatus.WAKING,
        EngineStatus.SUSPENDING,
        EngineStatus.SUSPENDED,
        EngineStatus.RESUMING,
    }
)


def estimate_footprint(
    profile: ModelProfile,
    status: EngineStatus,
    tier: ResidencyTier,
    devices: Sequence[DeviceName],
    kv_limit_bytes: int,
    reading_bytes: int = 0,
    host_reading_bytes: int = 0,
) -> dict[DeviceName, int]:
    """Bytes per device that an engine in `status` holds.

    Args:
        profile: of the model.
        status: not STOPPING, which keeps whatever was booked before.
        tier: where its weights are, or are going, while it sleeps.
        devices: where it runs; each of them holds the same.
        kv_limit_bytes: per device.
        reading_bytes: read per device; the booking follows when it is higher.
        host_reading_bytes: the same for the host; counts while weights are at tier HOST.
    """
    if status in (EngineStatus.STOPPED, EngineStatus.FAILED):
        return {}
    if status is EngineStatus.STARTING:
        each = estimate_starting_bytes(profile, kv_limit_bytes)
    elif status in _ASLEEP:
        each = estimate_asleep_bytes(profile)
    else:
        each = estimate_awake_bytes(profile, kv_limit_bytes)
    held = dict.fromkeys(devices, max(each, reading_bytes))
    host_bytes = estimate_host_bytes(profile, tier)
    if status in _HOLDS_HOST and host_bytes:
        held[HOST_DEVICE] = max(host_bytes, host_reading_bytes)
    return held
