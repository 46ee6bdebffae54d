"""What is due by time alone: cool-downs, back-offs, time to live, unused prewarms, repeated stops.

Level-triggered like everything around it: a timer only brings the core here, where times are
compared, so a timer that fires early, late or twice does no harm.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.prewarm import watch_advice
from maestroctl.scheduler.node.stages import COOL_DOWN_S, watch_ttl
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transitions import begin_sleep, issue_stop

S = EngineStatus


def run_due(state: NodeState) -> None:
    """Do what is due and have timers out for what will be."""
    for engine in state.engines.values():
        if engine.status is S.STOPPING:
            _repeat_stop(state, engine)
        elif state.shutdown is not None or not engine.abilities.managed:
            continue
        elif engine.status is S.FAILED:
            _cool_down(state, engine)
        elif engine.status in (S.SLEEPING, S.STOPPED):
            if engine.advice is not None:
                watch_advice(state, engine, engine.advice)
            if engine.status is S.STOPPED and engine.not_before_s > state.now_s:
                state.want_timer("backoff", engine, engine.not_before_s)
        elif engine.status is S.SUSPENDED:
            deadline_s = engine.since_s + state.policy.resume_deadline_s
            if engine.running and deadline_s > state.now_s:
                state.want_timer("resume", engine, deadline_s)
        elif engine.status is S.IDLE:
            _rest_if_unused(state, engine)


def _repeat_stop(state: NodeState, engine: EngineState) -> None:
    if engine.stop_retry_s > state.now_s:
        state.want_timer("stop", engine, engine.stop_retry_s)
    else:
        issue_stop(state, engine)


def _cool_down(state: NodeState, engine: EngineState) -> None:
    """FAILED is left after a while; one more failure leads straight back."""
    over_s = engine.since_s + COOL_DOWN_S
    if state.now_s < over_s:
        state.want_timer("cooldown", engine, over_s)
        return
    state.move(engine, S.STOPPED, "cool-down over")
    engine.not_before_s = state.now_s


def _rest_if_unused(state: NodeState, engine: EngineState) -> None:
    """Sleep after `ttl` idle, or when a prewarm was not used."""
    if engine.waiting or engine.give_way is not None:
        return
    idle_since_s = engine.idle_since_s if engine.idle_since_s is not None else state.now_s
    ttl_s = None if engine.pinned else engine.spec.ttl_s
    until_s = engine.prewarm_until_s
    # The same sum as in the timer: now - since >= ttl may miss it by a rounding error.
    expired = ttl_s is not None and state.now_s >= idle_since_s + ttl_s
    unused = until_s is not None and state.now_s >= until_s
    if (expired or unused) and not state.is_locked(engine):
        begin_sleep(state, engine, "idle for its time to live" if expired else "prewarm not used")
        return
    if ttl_s is not None and not expired:
        watch_ttl(state, engine)
    if until_s is not None and not unused:
        state.want_timer("prewarm", engine, until_s)
