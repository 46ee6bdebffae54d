"""Moving weights between tiers: bytes over bandwidth, and a fixed part (inside Maestro Eq 6)."""

from __future__ import annotations


def estimate_transfer_s(
    num_bytes: int, bandwidth_bytes_per_s: float, fixed_s: float = 0.0
) -> float:
    """Seconds to move `num_bytes`: fixed part + Size / BW_tier.

    Raises:
        ValueError: the bandwidth is not positive, or there are negative bytes.
    """
    if bandwidth_bytes_per_s <= 0 or num_bytes < 0:
        raise ValueError(f"cannot move {num_bytes} bytes at {bandwidth_bytes_per_s} bytes/s")
    return fixed_s + num_bytes / bandwidth_bytes_per_s
