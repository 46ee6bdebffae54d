"""Requests by hand that wait for an engine: each is answered exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.messages import ModelAction
from maestroctl.scheduler.effects import AnswerModelAction
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.state import NodeState

_GONE = (EngineStatus.STOPPED, EngineStatus.FAILED)
GOALS: Mapping[ModelAction, tuple[EngineStatus, ...]] = {
    ModelAction.WAKE: (EngineStatus.IDLE, EngineStatus.ACTIVE),
    ModelAction.SLEEP: (EngineStatus.SLEEPING, *_GONE),
    ModelAction.EVICT: _GONE,
}


def describe_gone(engine: EngineState) -> str:
    """What is so of an engine without a process."""
    return "has failed" if engine.status is EngineStatus.FAILED else "is stopped"


def settle_requests(state: NodeState, engine: EngineState) -> None:
    """Answer the requests whose goal the engine has reached."""
    if not engine.requests:
        return
    done = [request for request in engine.requests if engine.status in GOALS[request.action]]
    for request in done:
        engine.requests.remove(request)
        note = request.note
        if not note and request.action is ModelAction.SLEEP and engine.status in _GONE:
            note = describe_gone(engine)
        state.effects.append(AnswerModelAction(request.request_id, note=note))


def fail_requests(
    state: NodeState, engine: EngineState, actions: Iterable[ModelAction], error: str
) -> None:
    """Answer the open requests of these kinds with an error."""
    wanted = tuple(actions)
    for request in [request for request in engine.requests if request.action in wanted]:
        engine.requests.remove(request)
        state.effects.append(AnswerModelAction(request.request_id, error))
