"""A budget lowered below the books: engines give way until what is booked fits again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maestroctl.domain.ids import DeviceName, TimerId
from maestroctl.scheduler.effects import SetTimer
from maestroctl.scheduler.node.degradation import LEVEL_ABORT, LEVEL_SUSPEND, DegradationPlan
from maestroctl.scheduler.node.engine_state import OrderCause
from maestroctl.scheduler.node.orders import apply_plan
from maestroctl.scheduler.node.residency import VictimView
from maestroctl.scheduler.node.room import Room
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.victims import VictimPool

RELIEF_TIMER = TimerId("relief")


def relieve_overrun(state: NodeState, room: Room, victims: VictimPool) -> None:
    """Idle engines give way, as far as it helps; in the end, busy ones."""
    if not state.books.overrun:
        state.overrun_since_s = None
        state.drop_timer(RELIEF_TIMER)
        return
    if state.overrun_since_s is None:
        state.overrun_since_s = state.now_s
    short = room.overrun()
    if not short:
        return
    ranked = victims.rank(None)
    host_free = room.host_free_bytes()
    plan = _plan_hard_relief(state, short, ranked, host_free) or state.degradation.plan(
        short, ranked, host_free, may_drain=False, partial=True
    )
    if plan is not None and plan.steps:
        reason = "booked memory is above the budget"
        apply_plan(state, room, plan, OrderCause.BUDGET, reason)


def _plan_hard_relief(
    state: NodeState, short: Mapping[DeviceName, int], ranked: Sequence[VictimView], host_free: int
) -> DegradationPlan | None:
    """Memory that others took does not come back by waiting: in the end, levels 4 and 5."""
    plan = state.degradation.plan(short, ranked, host_free, may_drain=False, max_level=LEVEL_ABORT)
    if plan is None or plan.level < LEVEL_SUSPEND:
        return None
    assert state.overrun_since_s is not None
    hard_s = state.overrun_since_s + state.policy.drain_wait_s
    if state.now_s >= hard_s:
        return plan
    if state.timers.get(RELIEF_TIMER) != hard_s:
        state.timers[RELIEF_TIMER] = hard_s
        state.effects.append(SetTimer(RELIEF_TIMER, hard_s))
    return None
