"""What is read rather than decided: adopted engines at start, budgets and memory readings."""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import DeviceName
from maestroctl.scheduler.events import EngineAdopted, MemoryRead
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transition_results import (
    find_engine,
    reading_per_device,
    rest,
    set_awake,
)

S = EngineStatus
_ADOPTABLE = (S.IDLE, S.SLEEPING, S.SUSPENDED)


def adopt_engine(state: NodeState, event: EngineAdopted) -> None:
    """Take over a healthy engine of a former daemon; its booking is what was read."""
    engine = find_engine(state, event.engine_id)
    devices = event.devices or state.compute_devices()[: engine.spec.tensor_parallel]
    if (
        engine.status is not S.STOPPED
        or event.status not in _ADOPTABLE
        or engine.model != event.model
        or not engine.abilities.managed
        or event.kv_limit_bytes < 0
        or any(device not in state.books.budgets for device in devices)
    ):
        raise state.violation(f"cannot adopt {event} while {engine.status}", engine)
    engine.generation = 1
    engine.devices = devices
    engine.kv_limit_bytes = engine.kv_base_bytes = event.kv_limit_bytes
    if event.status is S.IDLE:
        set_awake(state, engine, event.status, event.readings)
    else:
        rest(state, engine, event.status, event.tier, event.readings)
    state.dirty = True


def read_memory(state: NodeState, event: MemoryRead) -> None:
    """Budgets as they are now, and what engines really hold; bookings follow upwards.

    A lowered budget may leave more booked than there is: then nothing is admitted and room is
    made, but nothing raises.
    """
    unknown = [device for device in event.budgets if device not in state.books.budgets]
    negative = [n for n in (*event.budgets.values(), *event.engines.values()) if n < 0]
    strangers = [engine_id for engine_id in event.engines if engine_id not in state.engines]
    if unknown or negative or strangers:
        raise state.violation(f"impossible reading: {unknown or strangers or negative}")
    overrun_before = dict(state.books.overrun)
    for device, budget_bytes in event.budgets.items():
        if state.books.set_budget(device, budget_bytes):
            state.changed = True
            state.dirty = state.dirty or state.contended or bool(state.books.overrun)
    for engine_id, num_bytes in event.engines.items():
        _read_engine(state, state.engines[engine_id], num_bytes)
    if state.books.overrun != overrun_before:
        state.dirty = True


def _read_engine(state: NodeState, engine: EngineState, num_bytes: int) -> None:
    """At rest the booking is the higher of formula and reading; in a transition it only rises."""
    if not engine.status.has_process or not engine.abilities.managed:
        return
    each = reading_per_device(engine, num_bytes)
    if not engine.status.is_changing:
        engine.reading_bytes = each
        state.follow(engine, state.footprint(engine))
        return
    engine.reading_bytes = max(engine.reading_bytes, each)
    held = state.books.holding(engine.engine_id)
    more: dict[DeviceName, int] = dict(held)
    for device in engine.devices:
        more[device] = max(held.get(device, 0), each)
    state.follow(engine, more)
