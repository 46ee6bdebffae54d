"""Invariants of a node core, checked on demand: `NodeCore.validate`."""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.scheduler.node.admission import can_forward
from maestroctl.scheduler.node.engine_state import EngineState, StagePlace
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus
_CAN_RUN = (S.ACTIVE, S.DRAINING, S.SUSPENDING, S.SUSPENDED, S.RESUMING)


def validate_node(state: NodeState) -> None:
    """Check every table against the others.

    Raises:
        InvariantViolation: with the story of the engine concerned.
    """
    state.books.validate()
    placed = 0
    for engine in state.engines.values():
        placed += len(engine.waiting) + len(engine.running)
        _check_stages(state, engine)
        _check_status(state, engine)
        _check_booking(state, engine)
        _check_waiters(state, engine)
    if placed != len(state.stages):
        raise state.violation(f"{len(state.stages)} stages in the table, {placed} in engines")
    _check_locks(state)


def _check(state: NodeState, engine: EngineState, holds: bool, rule: str) -> None:
    if not holds:
        raise state.violation(f"{engine.engine_id} ({engine.status}): {rule}", engine)


def _check_stages(state: NodeState, engine: EngineState) -> None:
    """Each stage is in exactly one place; sums are current."""
    for stage_id, stage in engine.waiting.items():
        known = state.stages.get(stage_id) is stage and stage.place is StagePlace.WAITING
        _check(state, engine, known, f"held stage {stage_id} is out of place")
    for stage_id, stage in engine.running.items():
        known = state.stages.get(stage_id) is stage and stage.place is not StagePlace.WAITING
        _check(state, engine, known, f"running stage {stage_id} is out of place")
    stages = [*engine.waiting.values(), *engine.running.values()]
    protected = sum(stage.protected for stage in stages)
    _check(state, engine, protected == engine.num_protected, "protected count is off")
    booked = sum(stage.kv_bytes for stage in engine.running.values())
    _check(state, engine, booked == engine.kv_booked_bytes, "KV bookings do not add up")
    held = sum(stage.kv_bytes for stage in engine.waiting.values())
    _check(state, engine, held == engine.kv_waiting_bytes, "waiting KV does not add up")


def _check_status(state: NodeState, engine: EngineState) -> None:
    running = bool(engine.running)
    _check(state, engine, not running or engine.status in _CAN_RUN, "stages open, cannot serve")
    _check(state, engine, engine.status is not S.ACTIVE or running, "active without a stage")
    pending = engine.pending is not None
    if engine.status is not S.STOPPING:  # which may wait for a lock or for its retry
        changing = engine.status.is_changing
        _check(state, engine, pending == changing, "effect in flight against its status")
    if engine.status is S.DRAINING and state.shutdown is None:
        _check(state, engine, engine.give_way is not None, "drains for nothing")
    if engine.give_way is not None:
        _check(state, engine, not engine.status.is_awake, "awake although it has to give way")
    if engine.status is S.FAILED:
        _check(state, engine, not engine.waiting, "failed with stages held")


def _check_booking(state: NodeState, engine: EngineState) -> None:
    """What is booked covers what the status says it holds."""
    held = state.books.holding(engine.engine_id)
    if engine.status is S.STOPPING:
        return
    tier = engine.pending.tier if engine.pending else engine.tier
    if engine.status in (S.WAKING, S.RESUMING):
        tier = engine.tier
    for device, num_bytes in state.footprint(engine, None, tier).items():
        _check(state, engine, held.get(device, 0) >= num_bytes, f"books too little on {device}")
    if not engine.status.has_process or not engine.abilities.managed:
        _check(state, engine, not held, f"books {held} without a process of ours")


def _check_waiters(state: NodeState, engine: EngineState) -> None:
    """Nobody waits next to an open engine that could take him, and nobody waits for nothing."""
    if not engine.waiting:
        return
    _check(state, engine, state.shutdown is None, "holds stages while the node shuts down")
    if state.is_open(engine):
        first = engine.waiters_in_order(state.now_s)[0]
        free = can_forward(engine, first.kv_bytes)
        _check(state, engine, not free, f"{first.stage_id} waits next to a free slot")
        return
    moving = any(other.pending is not None or other.running for other in state.engines.values())
    _check(state, engine, moving or bool(state.timers), "its stages wait for nothing")


def _check_locks(state: NodeState) -> None:
    """One transition per device; the table says whose."""
    locked = {
        device: engine.engine_id
        for engine in state.engines.values()
        if engine.pending is not None and engine.pending.locked
        for device in engine.devices
    }
    if locked != state.locks:
        raise state.violation(f"locks {state.locks} against effects in flight {locked}")
    if state.shutdown is None:
        for engine in state.engines.values():
            sole = engine.pending is None or engine.pending.locked
            _check(state, engine, sole, "changes memory without the lock")
