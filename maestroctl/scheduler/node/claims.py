"""Who waits for memory, and in which order they are served.

An engine has a *claim* while it is not awake and somebody wants it: stages held for it, a wake by
hand, or requests frozen in it. An awake engine has one while its stages are held because a budget
was lowered under it. Claims are served in the order of their oldest wait; a suspended engine whose
resume deadline has passed precedes them all.

Before `force_after_s` a claim takes free memory and idle victims only, so the model that serves
now may go on taking stages; after it, busy engines are drained for it. When that has taken longer
than `drain_wait_s`, levels 4 and 5 of Algorithm 2 are open to it, as far as `hard_rungs` allows.
Waiters of one model are one claim: they are served together, and orders such as A A B A C B do
not thrash. How long the model on the device goes on while others wait is `group_wait_s`: switching
takes time in which nothing is served, so the wait is in proportion to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.node.engine_state import Advice, EngineState
from maestroctl.scheduler.node.state import NodeState

S = EngineStatus
AT_REST = (S.STOPPED, S.SLEEPING, S.SUSPENDED)
"""From here an engine can be brought to life."""
PREWARM_LEAD = 2.0
"""Activation times ahead of the expected stage: one to activate, one for victims to fall asleep
and for the prediction to be late."""


SWITCH_SHARE = 0.1
"""Of a device's time that switching may take while models contend for it (assumed)."""
GROUP_WAIT_S = (5.0, 60.0)
"""Bounds of the wait that follows from it: dear switches must not starve a model."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One engine's claim to memory.

    Attributes:
        resumes: a suspended engine with open requests.
        urgent: the same past its resume deadline.
        admits_only: the engine is awake; it needs its device's overrun to end.
        interactive: an interactive stage is among its waiters.
        prewarms: nobody waits yet; a coordinator expects a stage (section 6, AdvisePrewarm).
        grows_to_bytes: the engine is awake and its elastic KV limit is to rise to this; 0 = not.
    """

    engine: EngineState
    since_s: float
    force_after_s: float
    resumes: bool = False
    urgent: bool = False
    admits_only: bool = False
    interactive: bool = False
    prewarms: bool = False
    grows_to_bytes: int = 0

    def hard_rungs(self) -> Mapping[int, int]:
        """Highest harm per level beyond 3 that the claim justifies: batch gives way to interactive.

        Waiting is always possible, so nobody's stream is cut for a claim; a request that has not
        sent a byte goes back to the queue, at no more than a delay.
        """
        if self.urgent:
            return {4: 1, 5: 1}
        return {4: 1, 5: 0} if self.interactive else {4: 0}


def list_claims(state: NodeState, engines: Iterable[EngineState]) -> list[Claim]:
    """The claims of these engines, first to be served first."""
    claims = [claim for engine in engines if (claim := _claim_of(state, engine))]
    return sorted(
        claims,
        key=lambda claim: (
            not claim.urgent,
            claim.prewarms,
            claim.since_s,
            claim.resumes,
            claim.engine.engine_id,
        ),
    )


def _claim_of(state: NodeState, engine: EngineState) -> Claim | None:
    wait_s = group_wait_s(state, engine)
    since_s = engine.wanted_since_s()
    if engine.status.is_awake:
        if state.is_open(engine):
            return _growth(engine, state.now_s)
        if since_s is None or not engine.waiting:
            return None
        return Claim(engine, since_s, since_s + wait_s, admits_only=True)
    if engine.status not in AT_REST or engine.give_way_is_final():
        return None
    if engine.status is S.STOPPED and engine.not_before_s > state.now_s:
        return None
    if engine.status is S.SUSPENDED and engine.running:
        # Held stages older than the suspension do not count: the engine gave way to somebody, and
        # would otherwise be back before him.
        deadline_s = engine.since_s + state.policy.resume_deadline_s
        urgent = state.now_s >= deadline_s
        return Claim(engine, engine.since_s, deadline_s, resumes=True, urgent=urgent)
    if since_s is None:
        return _foreseen(state, engine)
    interactive = any(
        stage.service_class is ServiceClass.INTERACTIVE for stage in engine.waiting.values()
    )
    return Claim(engine, since_s, since_s + wait_s, interactive=interactive)


def group_wait_s(state: NodeState, engine: EngineState) -> float:
    """How long other models go on while `engine` has waiters, seconds.

    As configured, or (1 / SWITCH_SHARE - 1) x (sleep of the one + wake of the other).
    """
    if state.policy.group_wait_s is not None:
        return state.policy.group_wait_s
    profile = engine.need_profile()
    activation_s = profile.wake_s if engine.abilities.can_sleep else profile.cold_start_s
    least_s, most_s = GROUP_WAIT_S
    return min(most_s, max(least_s, (1 / SWITCH_SHARE - 1) * (profile.sleep_s + activation_s)))


def _growth(engine: EngineState, now_s: float) -> Claim | None:
    """A claim for a higher KV limit: stages outgrew their bookings, or the next one does not fit.

    It may take what idle engines hold and nobody else's memory: without it the engine recomputes
    inside its limit, and its waiters wait for a slot.
    """
    if not engine.abilities.elastic_kv:
        return None
    since_s, wanted = engine.last_used_s, engine.kv_booked_bytes
    if engine.waiting and len(engine.running) <= engine.max_batch:
        first = engine.waiters_in_order(now_s)[0]
        since_s, wanted = first.held_since_s, wanted + first.kv_bytes
    if wanted <= engine.kv_limit_bytes:
        return None
    return Claim(engine, since_s, float("inf"), grows_to_bytes=wanted)


def _foreseen(state: NodeState, engine: EngineState) -> Claim | None:
    """A claim on advice, from the time on at which activating must begin to be in time."""
    advice = engine.advice
    if advice is None or engine.status is S.SUSPENDED or engine.pinned:
        return None
    if state.now_s < begin_prewarm_s(engine, advice):
        return None
    return Claim(engine, advice.expected_s, float("inf"), prewarms=True)


def begin_prewarm_s(engine: EngineState, advice: Advice) -> float:
    """When to begin so that the engine is ready a little before the stage is expected."""
    profile = engine.need_profile()
    activation_s = profile.wake_s if engine.status is S.SLEEPING else profile.cold_start_s
    return advice.expected_s - PREWARM_LEAD * activation_s


def forget_advice_s(engine: EngineState, advice: Advice) -> float:
    """When advice that did not come true is dropped: 2 T_act after the stage was expected."""
    profile = engine.need_profile()
    activation_s = profile.wake_s if engine.status is S.SLEEPING else profile.cold_start_s
    return advice.expected_s + 2 * activation_s
