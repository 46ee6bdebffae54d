"""Going down: nothing new, forwarded stages finish (or are aborted), engines stop, then empty.

Unmanaged engines are left alone; only their stages are waited for. A process that will not go
keeps the node from being empty; it is told again with a growing delay until the host gives up.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import NodeEmptied
from maestroctl.scheduler.events import ShutdownRequested
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.requests import fail_requests
from maestroctl.scheduler.node.stages import abort_and_forget, refuse_waiters
from maestroctl.scheduler.node.state import NodeState, ShutdownMode
from maestroctl.scheduler.node.transitions import abort_frozen, begin_stop

S = EngineStatus
REASON = "the node is shutting down"


def request_shutdown(state: NodeState, event: ShutdownRequested) -> None:
    """Begin to go down; asking again without `drain` makes a drain an immediate stop."""
    mode = ShutdownMode.DRAIN if event.drain else ShutdownMode.NOW
    if state.shutdown in (mode, ShutdownMode.NOW):
        state.stale()
        return
    state.shutdown = mode
    state.dirty = True
    state.changed = True
    for timer_id in list(state.timers):
        state.drop_timer(timer_id)
    for engine in state.engines.values():
        engine.give_way = None
        refuse_waiters(state, engine, REASON)
        fail_requests(state, engine, (ModelAction.WAKE, ModelAction.SLEEP), REASON)
        if mode is ShutdownMode.NOW:
            for stage in list(engine.running.values()):
                abort_and_forget(state, engine, stage, Outcome.INTERRUPTED, REASON)
            if engine.status is S.ACTIVE:
                state.flip(engine, S.IDLE)


def step_shutdown(state: NodeState) -> None:
    """Stop what can be stopped; say once that nothing is left."""
    if state.emptied:
        return
    for engine in state.engines.values():
        if engine.abilities.managed:
            _step_engine(state, engine)
    if state.stages or any(
        engine.status.has_process for engine in state.engines.values() if engine.abilities.managed
    ):
        return
    state.emptied = True
    state.effects.append(NodeEmptied())


def _step_engine(state: NodeState, engine: EngineState) -> None:
    if engine.status is S.SUSPENDED:
        abort_frozen(state, engine, Outcome.INTERRUPTED, REASON)
    if engine.running or engine.status in (S.STOPPED, S.FAILED, S.STOPPING):
        return
    begin_stop(state, engine, REASON)
