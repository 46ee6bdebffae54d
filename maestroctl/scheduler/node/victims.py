"""Which engines may give way for another.

Never a victim: the requester itself, a pinned or unmanaged engine, one whose transition is in
flight, one that was activated for stages it has not served yet, one that already gives way.

See also: `victim_view` (what each can do, and what that costs), `residency` (who goes first).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import EngineId
from maestroctl.scheduler.node.degradation import LEVEL_SUSPEND
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.residency import VictimView
from maestroctl.scheduler.node.state import NodeState
from maestroctl.scheduler.node.victim_view import view_victim

S = EngineStatus
_AWAKE = (S.IDLE, S.ACTIVE, S.DRAINING)
_MAY_BE_CALLED_OFF = (S.STARTING, S.FALLING_ASLEEP)


class VictimPool:
    """Engines that may give way, ranked once for one reconciliation pass."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._ranked: list[VictimView] | None = None

    def rank(
        self,
        requester: EngineId | None,
        later: Collection[EngineId] = (),
        since_s: float | None = None,
    ) -> list[VictimView]:
        """Those that may give way for `requester`, first to go first.

        Args:
            requester: whose need it is; None when it is the budget's.
            later: engines whose own waiters come after the requester's: asleep, they may be
                stopped.
            since_s: since when the requester waits: starts for younger waiters may be called off.
        """
        engines = self._state.engines
        return [
            view
            for view in self._all()
            if view.engine_id != requester
            and not (engines[view.engine_id].pending and view.status in _AWAKE)
            and _may_give_way(engines[view.engine_id], later, since_s)
        ]

    def _all(self) -> list[VictimView]:
        """Every engine that anybody could ask, in order.

        Nothing that a pass does makes a view wrong: an engine that is told to give way, or begins
        a transition, is no candidate any more in this pass.
        """
        if self._ranked is None:
            state = self._state
            views = [
                view_victim(engine, state.now_s)
                for engine in state.engines.values()
                if engine.abilities.managed
                and not engine.pinned
                and state.books.holding(engine.engine_id)
                and (engine.pending is None or engine.status in _MAY_BE_CALLED_OFF)
                and engine.status is not S.STOPPING
            ]
            self._ranked = state.residency.rank_victims(views, state.now_s)
        return self._ranked


def _may_give_way(engine: EngineState, later: Collection[EngineId], since_s: float | None) -> bool:
    if engine.num_protected and engine.running:
        return False  # its stages are held back by an overrun otherwise: it may have to make room
    if engine.give_way is not None and engine.give_way.confirmed:
        return False
    if engine.status is S.STARTING:
        wanted_s = engine.wanted_since_s()
        return wanted_s is None or (since_s is not None and since_s < wanted_s)
    if engine.status is S.FALLING_ASLEEP:
        return engine.wanted_since_s() is None
    if engine.pending is not None:
        return False
    if engine.status in (S.SLEEPING, S.SUSPENDED):
        wanted = engine.wanted_since_s() is not None and engine.engine_id not in later
        return not engine.running and not wanted
    return engine.status in _AWAKE


def spare(views: Sequence[VictimView], rungs: Mapping[int, int]) -> list[VictimView]:
    """The views without the choices beyond level 3 whose harm the need does not justify."""
    kept = []
    for view in views:
        choices = tuple(
            c for c in view.choices if c.level < LEVEL_SUSPEND or c.harm <= rungs.get(c.level, -1)
        )
        kept.append(view if len(choices) == len(view.choices) else replace(view, choices=choices))
    return kept


def may_sleep_once_served(engine: EngineState) -> bool:
    """Awake and protected by stages it was activated for; a victim as soon as they have ended."""
    return (
        engine.status.is_awake
        and bool(engine.num_protected and engine.running)
        and engine.abilities.managed
        and not engine.pinned
    )
