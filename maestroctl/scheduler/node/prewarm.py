"""Advice on what a workflow needs next (algorithms section 6, AdvisePrewarm).

An advice is kept on its engine until the stage came, or 2 T_act after it was expected. From
`begin_prewarm_s` on it is a claim like others, the last of all: it takes free memory, and memory
of idle engines whose sleep (level 1) costs less than the activation it may hide. It never makes
anybody drain, stop or wait: whoever has stages goes first. That holds for the stage that the advice
was made with, too, which travels on a way of its own: advice that overtakes it waits for it.
"""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.scheduler.events import PrewarmAdvised
from maestroctl.scheduler.node.claims import begin_prewarm_s, forget_advice_s
from maestroctl.scheduler.node.engine_state import Advice, EngineState
from maestroctl.scheduler.node.epochs import change_epoch
from maestroctl.scheduler.node.state import NodeState

_MAY_BE_WARMED = (EngineStatus.STOPPED, EngineStatus.SLEEPING)


def consider_advice(state: NodeState, event: PrewarmAdvised) -> None:
    """A coordinator expects a stage: taken only when it costs nobody anything."""
    if event.epoch < state.epoch:
        state.stale()
        return
    if event.epoch > state.epoch:
        change_epoch(state, event.epoch)
    if event.seq > state.applied_seq:
        state.early_advice[event.model] = event
        return
    engine = state.by_model.get(event.model)
    if engine is None or not engine.abilities.managed or state.shutdown is not None:
        return
    if engine.status.is_awake or engine.give_way_is_final() or engine.pinned:
        return
    heed_advice(state, engine, Advice(event.probability, event.expected_at_s))


def consider_early_advice(state: NodeState) -> None:
    """A stage came: heed what was advised with it."""
    for event in list(state.early_advice.values()):
        if event.seq <= state.applied_seq:
            del state.early_advice[event.model]
            consider_advice(state, event)


def heed_advice(state: NodeState, engine: EngineState, advice: Advice) -> None:
    """Keep the advice; of two, the one that comes true earlier."""
    why_not = _why_not(state, engine)
    if why_not:
        state.record("residency", engine.engine_id, "", f"prewarm not taken: {why_not}")
        return
    present = engine.advice
    if present is not None and present.expected_s <= advice.expected_s:
        advice = Advice(max(present.probability, advice.probability), present.expected_s)
    engine.advice = advice
    state.dirty = True


def watch_advice(state: NodeState, engine: EngineState, advice: Advice) -> None:
    """Drop advice that did not come true; have a timer out for the time to begin."""
    begin_s = begin_prewarm_s(engine, advice)
    forget_s = forget_advice_s(engine, advice)
    if state.now_s >= forget_s:
        engine.advice = None
    else:
        state.want_timer("advice", engine, begin_s if begin_s > state.now_s else forget_s)


def _why_not(state: NodeState, engine: EngineState) -> str:
    if engine.status not in _MAY_BE_WARMED:
        return f"engine is {engine.status}"
    if engine.status is EngineStatus.STOPPED and engine.model in state.never_fits:
        return state.never_fits[engine.model]
    if engine.not_before_s > state.now_s:
        return "it backs off"
    return ""
