"""Wake, sleep, evict, pin and unpin, asked for by a person. Each is answered exactly once.

A wake is a claim like that of a held stage. Sleep and evict drain a busy engine first; `evict`
then ends the process and frees everything. The latest word counts: a wake calls off a sleep or
evict that has not begun, and the other way round, and who asked for it is told.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.messages import ModelAction
from maestroctl.scheduler.effects import AnswerModelAction
from maestroctl.scheduler.events import ModelActionRequested
from maestroctl.scheduler.node.engine_state import (
    EngineState,
    GiveWayOrder,
    HandRequest,
    OrderCause,
)
from maestroctl.scheduler.node.orders import call_off_drain
from maestroctl.scheduler.node.requests import GOALS, describe_gone, fail_requests, settle_requests
from maestroctl.scheduler.node.residency import GiveWayAction
from maestroctl.scheduler.node.shutdown import REASON
from maestroctl.scheduler.node.stages import refuse_waiters
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.transitions import begin_stop, drain

S = EngineStatus
_WITH_FROZEN = (S.SUSPENDING, S.SUSPENDED, S.RESUMING)


def request_action(state: NodeState, event: ModelActionRequested) -> None:
    """Do what was asked, or say why not."""
    if any(
        request.request_id == event.request_id
        for engine in state.engines.values()
        for request in engine.requests
    ):
        raise state.violation(f"request {event.request_id} by hand is open already")
    engine = state.by_model.get(event.model)
    if engine is None:
        unknown = f"this node does not run {event.model!r}"
        state.effects.append(AnswerModelAction(event.request_id, unknown))
        return
    note = _what_is_so(engine, event.action)
    if event.action in (ModelAction.PIN, ModelAction.UNPIN):
        _set_pinned(state, engine, event.action is ModelAction.PIN)
        state.effects.append(AnswerModelAction(event.request_id, note=note))
        return
    error = _why_not(state, engine, event.action)
    if error is not None:
        state.effects.append(AnswerModelAction(event.request_id, error))
        return
    state.journal.note(state.now_s, engine.engine_id, None, f"{event.action} by hand")
    engine.requests.append(HandRequest(event.request_id, event.action, state.now_s, note))
    if event.action is ModelAction.WAKE:
        _wake(state, engine)
    else:
        _give_way(state, engine, event.action)
    settle_requests(state, engine)
    state.dirty = True


def _why_not(state: NodeState, engine: EngineState, action: ModelAction) -> str | None:
    """The error of a wake, sleep or evict that is not possible; None when it is."""
    model = engine.model
    if state.shutdown is not None:
        return REASON
    if action is ModelAction.WAKE:
        if not engine.status.has_process:
            return state.never_fits.get(model)
        return None
    if not engine.abilities.managed:
        return f"{model!r} is run by somebody else: it cannot be told to {action}"
    if action is ModelAction.SLEEP and engine.status not in GOALS[action]:
        if not engine.abilities.can_sleep:
            return f"the engine of {model!r} cannot sleep; evict stops it"
        if engine.status in _WITH_FROZEN:
            return f"{model!r} holds suspended requests; evict stops it"
    return None


def _what_is_so(engine: EngineState, action: ModelAction) -> str:
    """What the action finds done already; empty when there is something to do."""
    match action:
        case ModelAction.PIN:
            return "is pinned already" if engine.pinned else ""
        case ModelAction.UNPIN:
            return "" if engine.pinned else "is not pinned"
    if engine.status not in GOALS[action]:
        return ""
    match action:
        case ModelAction.WAKE:
            return "is awake already"
        case ModelAction.SLEEP if engine.status is S.SLEEPING:
            return "is asleep already"
        case ModelAction.SLEEP:
            return f"{describe_gone(engine)}; nothing to put to sleep"
        case ModelAction.EVICT:
            return f"{describe_gone(engine)}; nothing to stop"


def _set_pinned(state: NodeState, engine: EngineState, pinned: bool) -> None:
    if engine.pinned != pinned:
        engine.pinned = pinned
        state.changed = True
        state.dirty = True


def _wake(state: NodeState, engine: EngineState) -> None:
    engine.failures = 0
    engine.not_before_s = state.now_s
    if engine.status is S.FAILED:
        state.move(engine, S.STOPPED, "woken by hand")
    if engine.give_way_is_final():
        engine.give_way = None
        fail_requests(
            state, engine, (ModelAction.SLEEP, ModelAction.EVICT), "called off: woken by hand"
        )
        if engine.status is S.DRAINING:
            call_off_drain(state, engine)


def _give_way(state: NodeState, engine: EngineState, action: ModelAction) -> None:
    fail_requests(state, engine, (ModelAction.WAKE,), f"called off: told to {action} by hand")
    if engine.status in GOALS[action] or engine.status is S.STOPPING:
        return
    evict = action is ModelAction.EVICT
    if evict and engine.status is S.STARTING:
        refuse_waiters(state, engine, f"{engine.model!r} was evicted by hand", retry_in_s=1.0)
        begin_stop(state, engine, "evicted by hand")
        return
    if not evict and engine.status is S.FALLING_ASLEEP:
        return
    before = engine.give_way
    stop = evict or (before is not None and before.action is GiveWayAction.STOP)
    verb = GiveWayAction.STOP if stop else GiveWayAction.SLEEP
    drain(state, engine, GiveWayOrder(verb, OrderCause.HAND))
