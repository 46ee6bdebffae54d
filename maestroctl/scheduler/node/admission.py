"""May a stage enter an engine? Slots and sequence bookings inside the engine's KV limit.

Eq 4 books an engine's whole KV limit, so nothing here can break it. An engine takes
min(max_batch, what its KV limit admits) + 1 stages: the one on top waits next to the engine (in
the engine itself when only the batch is full, held by the node when its KV would not fit), so a
slot that frees is taken at once. Everything beyond waits in the coordinator.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.scheduler.node.engine_state import EngineState

RETRY_FULL_S = 0.25  # a few decoding steps of a batch: some stage is likely to have left
TYPICAL_TOKENS = 512  # a stage nobody has seen yet, for the slot count of an empty engine


def can_forward(engine: EngineState, kv_bytes: int) -> bool:
    """Does the engine, awake and open, take one more stage of `kv_bytes` now?

    An empty engine takes any stage: its KV limit holds one sequence of full length.
    """
    running = len(engine.running)
    return running == 0 or (
        running <= engine.max_batch and engine.kv_booked_bytes + kv_bytes <= engine.kv_limit_bytes
    )


def can_hold(engine: EngineState) -> bool:
    """May the node hold one more stage for the engine, its own and earlier ones counted?"""
    taken = engine.kv_booked_bytes + engine.kv_waiting_bytes
    return engine.num_stages <= engine.max_batch and (
        engine.num_stages == 0 or taken <= engine.kv_capacity_bytes
    )


def count_slots(engine: EngineState) -> int:
    """Stages the engine takes at once, for the snapshot: judged by the mix it has now."""
    if engine.kv_bytes(TYPICAL_TOKENS) == 0:
        return engine.max_batch + 1
    taken = engine.kv_booked_bytes + engine.kv_waiting_bytes
    capacity = engine.kv_capacity_bytes
    if engine.num_stages:
        typical = max(1, taken // engine.num_stages)
        admitted = engine.num_stages + max(0, capacity - taken) // typical
    else:
        admitted = capacity // max(1, engine.kv_bytes(TYPICAL_TOKENS))
    return min(engine.max_batch, max(1, admitted)) + 1


def explain_full(engine: EngineState) -> tuple[str, float]:
    """(reason, retry hint in seconds) of a stage that cannot be held."""
    if engine.status is EngineStatus.DRAINING and engine.profile is not None:
        return "draining", engine.profile.sleep_s + engine.profile.wake_s
    return "full", RETRY_FULL_S
