"""What an engine holds in each phase of its life (the terms of Maestro Eq 4).

``M_kv + M_res <= M_total`` per device, and the same for host memory. M_res = weights + context +
activation peak of every live engine, plus a transient peak while it starts. A sleeping engine
still holds its context on the device and, at tier HOST, its weights in host memory.

All figures are bytes per device after the tensor-parallel split. Who holds what right now is the
ledger's business (`scheduler.node.books`).
"""

from __future__ import annotations

from maestroctl.domain.engine import ResidencyTier
from maestroctl.domain.llm import ModelProfile


def estimate_starting_bytes(profile: ModelProfile, kv_limit_bytes: int) -> int:
    """Device bytes while the engine starts: awake, and its start peak on top."""
    return estimate_awake_bytes(profile, kv_limit_bytes) + profile.start_peak_bytes


def estimate_awake_bytes(profile: ModelProfile, kv_limit_bytes: int) -> int:
    """Device bytes of an awake engine: weights + context + peak + KV limit."""
    return profile.awake_bytes + kv_limit_bytes


def estimate_asleep_bytes(profile: ModelProfile) -> int:
    """Device bytes of a sleeping engine: its context."""
    return profile.context_bytes


def estimate_host_bytes(profile: ModelProfile, tier: ResidencyTier) -> int:
    """Host bytes of a sleeping engine: its weights at tier HOST, nothing at tier DISK."""
    return profile.host_asleep_bytes if tier is ResidencyTier.HOST else 0


def estimate_least_start_bytes(profile: ModelProfile) -> int:
    """The least device bytes with which the model can be started at all."""
    return estimate_starting_bytes(profile, profile.kv_least_bytes)
