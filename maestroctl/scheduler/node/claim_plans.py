"""Plans of victims that make room for one claim (steps 4b, 4e and 4f of `reconcile`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.scheduler.node.claims import Claim
from maestroctl.scheduler.node.degradation import (
    LEVEL_KILL_START,
    LEVEL_STOP,
    LEVEL_SUSPEND,
    DegradationPlan,
)
from maestroctl.scheduler.node.engine_state import OrderCause
from maestroctl.scheduler.node.orders import apply_plan
from maestroctl.scheduler.node.placement import Activation
from maestroctl.scheduler.node.residency import VictimView
from maestroctl.scheduler.node.room import Room
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.victim_view import view_victim
from maestroctl.scheduler.node.victims import VictimPool, may_sleep_once_served, spare


class ClaimPlans:
    """Lives for one pass.

    Attributes:
        later: engines whose claims come after the one in hand.
    """

    def __init__(self, state: NodeState, room: Room, victims: VictimPool) -> None:
        self.later: tuple[EngineId, ...] = ()
        self._state = state
        self._room = room
        self._victims = victims

    def rank(self, claim: Claim, *, with_later: bool) -> list[VictimView]:
        """Who may give way for the claim, first to go first.

        Args:
            with_later: sleeping engines whose claims come after this one may be stopped.
        """
        later = self.later if with_later else ()
        return self._victims.rank(claim.engine.engine_id, later, claim.since_s)

    def make_room(
        self,
        claim: Claim,
        options: Sequence[Activation],
        *,
        may_drain: bool,
        max_level: int = LEVEL_KILL_START,
    ) -> bool:
        """Tell victims to give way for one of the options; False = there are not enough."""
        found = self.find(claim, options, may_drain=may_drain, max_level=max_level)
        if found is None:
            return False
        self.carry_out(claim, *found)
        return True

    def carry_out(
        self, claim: Claim, plan: DegradationPlan, option: Activation, why: str = ""
    ) -> None:
        """Give the plan's orders, and promise the claim what they will free."""
        engine = claim.engine
        reason = f"room for {engine.engine_id}{why}"
        apply_plan(self._state, self._room, plan, OrderCause.CLAIM, reason, engine.engine_id)
        self._room.promise(engine, option)

    def find(
        self,
        claim: Claim,
        options: Sequence[Activation],
        *,
        may_drain: bool,
        max_level: int = LEVEL_KILL_START,
    ) -> tuple[DegradationPlan, Activation] | None:
        """The plan of least impact over the options, and the option it is for."""
        state, room = self._state, self._room
        ranked = self.rank(claim, with_later=may_drain)
        if max_level >= LEVEL_SUSPEND:
            ranked = spare(ranked, claim.hard_rungs())
        found = []
        for option in options:
            short = room.shortage(claim.engine, option, coming=True)
            plan = state.degradation.plan(
                short, ranked, room.host_free_bytes(), may_drain=may_drain, max_level=max_level
            )
            if plan is None or not plan.steps:
                continue
            if not may_drain and self._is_hasty(claim, plan, short, ranked):
                continue
            found.append((plan, option))
        return min(found, key=lambda pair: (pair[0].impact, pair[1].devices), default=None)

    def _is_hasty(
        self,
        claim: Claim,
        plan: DegradationPlan,
        short: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
    ) -> bool:
        """It stops idle engines although a busy one could sleep instead, once it has drained.

        A stop costs a cold start the next time (half a minute), draining at most `group_wait_s`
        and what the open stages still take. An engine that serves its first waiters is no victim
        yet, but will be: it counts until the claim has waited its time.
        """
        if plan.level < LEVEL_STOP:
            return False
        state, views = self._state, list(ranked)
        if state.now_s < claim.force_after_s:
            known = {view.engine_id for view in ranked}
            views += [
                view_victim(engine, state.now_s)
                for engine in state.engines.values()
                if engine.engine_id not in known and may_sleep_once_served(engine)
            ]
        host_free = self._room.host_free_bytes()
        patient = state.degradation.plan(short, views, host_free, may_drain=True)
        return patient is not None and patient.level < plan.level
