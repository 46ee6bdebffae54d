"""Orders to give way: from a plan, or by hand; begun when the engine is empty and its device free.

An order of a claim or of a lowered budget is *confirmed* anew in every pass and called off when it
was not; an order by hand is carried out whatever others need.
"""

from __future__ import annotations

from collections.abc import Iterable

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import HOST_DEVICE, EngineId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.records import Candidate
from maestroctl.scheduler.node.degradation import DegradationPlan, DegradationStep
from maestroctl.scheduler.node.engine_state import EngineState, GiveWayOrder, OrderCause
from maestroctl.scheduler.node.requests import settle_requests
from maestroctl.scheduler.node.residency import GiveWayAction
from maestroctl.scheduler.node.room import Room
from maestroctl.scheduler.node.stages import abort, forward_waiters, refuse_waiters
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transitions import (
    abort_frozen,
    begin_sleep,
    begin_stop,
    begin_suspend,
    drain,
)

S = EngineStatus
_AWAKE = (S.IDLE, S.ACTIVE, S.DRAINING)


def doubt_orders(engines: Iterable[EngineState]) -> None:
    """Begin of a pass: orders of claims and budgets have to be confirmed again."""
    for engine in engines:
        if engine.give_way is not None and engine.give_way.cause is not OrderCause.HAND:
            engine.give_way.confirmed = False


def apply_plan(
    state: NodeState,
    room: Room,
    plan: DegradationPlan,
    cause: OrderCause,
    reason: str,
    requester: EngineId | None = None,
) -> None:
    """Give the orders of a plan and begin those that can begin."""
    _record_plan(state, plan, reason)
    for step in plan.steps:
        engine = state.engines[step.engine_id]
        engine.makes_room_for = requester
        room.add_coming(step.choice.freed_bytes)
        _order(state, engine, step, cause)
        takes = -step.choice.freed_bytes.get(HOST_DEVICE, 0)
        if engine.give_way is not None and takes > 0:  # not begun, so not booked yet
            room.promised[HOST_DEVICE] += takes


def _record_plan(state: NodeState, plan: DegradationPlan, reason: str) -> None:
    """A plan found again and again is recorded once."""
    if all(_is_ordered(state.engines[step.engine_id], step) for step in plan.steps):
        return
    state.record(
        "degrade",
        plan.steps[0].engine_id,
        ", ".join(f"{step.choice.action} {step.engine_id}" for step in plan.steps),
        reason,
        tuple(_describe(step) for step in plan.steps),
    )


def _is_ordered(engine: EngineState, step: DegradationStep) -> bool:
    """Was the engine told the same before?"""
    action = step.choice.action
    wanted = GiveWayAction.STOP if action is GiveWayAction.ABORT else action
    return engine.give_way is not None and engine.give_way.action is wanted


def _describe(step: DegradationStep) -> Candidate:
    freed = {str(device): float(size) for device, size in step.choice.freed_bytes.items()}
    return Candidate(step.engine_id, step.choice.cost_s, freed)


def _order(state: NodeState, engine: EngineState, step: DegradationStep, cause: OrderCause) -> None:
    action = step.choice.action
    if action is GiveWayAction.KILL_START:
        refuse_waiters(state, engine, f"start of {engine.model!r} was called off", retry_in_s=0.0)
        begin_stop(state, engine, "its memory is needed")
        return
    if engine.status is S.FALLING_ASLEEP:
        begin_stop(state, engine, f"gives way ({cause})")
        return
    if action is GiveWayAction.ABORT:
        for stage in list(engine.running.values()):
            abort(state, engine, stage, Outcome.PREEMPTED, "its memory was needed")
        action = GiveWayAction.STOP
    order = GiveWayOrder(action, cause)
    engine.give_way = order
    run_order(state, engine)
    if engine.give_way is order:
        drain(state, engine, order)


def run_order(state: NodeState, engine: EngineState) -> None:
    """Begin the order of an engine if nothing is in the way."""
    order = engine.give_way
    if order is None or engine.pending is not None or state.is_locked(engine):
        return
    why = f"gives way ({order.cause})"
    if order.action is GiveWayAction.SUSPEND and engine.running:
        begin_suspend(state, engine, why)
        return
    if engine.status is S.SUSPENDED and order.action is GiveWayAction.STOP:
        abort_frozen(state, engine, Outcome.PREEMPTED, "its engine was stopped by hand")
    if engine.running:
        return
    stops = order.action is GiveWayAction.STOP
    if stops and engine.status in (*_AWAKE, S.SLEEPING, S.SUSPENDED):
        if engine.status is S.SLEEPING and order.cause is OrderCause.CLAIM:
            # Level 3: a wake not begun is withdrawn, its stages may do better elsewhere.
            reason = f"wake of {engine.model!r} was withdrawn"
            refuse_waiters(state, engine, reason, retry_in_s=0.0)
        begin_stop(state, engine, why)
    elif engine.status in _AWAKE:
        begin_sleep(state, engine, why)
    else:
        engine.give_way = None
    settle_requests(state, engine)


def call_off_unconfirmed(state: NodeState, engines: Iterable[EngineState]) -> None:
    """End of a pass: orders that nobody needs any more."""
    for engine in engines:
        order = engine.give_way
        if order is not None and not order.confirmed:
            engine.give_way = None
            if engine.status is S.DRAINING:
                call_off_drain(state, engine)


def call_off_drain(state: NodeState, engine: EngineState) -> None:
    """A draining engine need not give way after all: it serves again."""
    if engine.running:
        state.move(engine, S.ACTIVE, "need not give way")
    else:
        state.move(engine, S.IDLE, "need not give way")
        engine.idle_since_s = state.now_s
    forward_waiters(state, engine)
