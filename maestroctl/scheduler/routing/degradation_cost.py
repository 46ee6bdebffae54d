"""C_deg of Maestro Eq 5: seconds that others lose when a node makes room for a model.

The node states its degradation curve in its snapshots: at most 8 rising points (bytes that can be
freed, cost in seconds), made with the routine that would free them (M Alg 2). Reading it here
costs nothing and asks nobody.
"""

from __future__ import annotations

from collections.abc import Sequence


def estimate_degradation_s(
    need_bytes: int, headroom_bytes: int, curve: Sequence[tuple[int, float]]
) -> float | None:
    """Seconds; 0 when the need fits the headroom, None when no point of the curve frees enough.

    Args:
        need_bytes: what the model takes.
        headroom_bytes: free on the device; may be negative.
        curve: (bytes freed, cost in seconds), rising.
    """
    deficit = need_bytes - headroom_bytes
    if need_bytes <= 0 or deficit <= 0:
        return 0.0
    for freed_bytes, cost_s in curve:
        if freed_bytes >= deficit:
            return cost_s
    return None
