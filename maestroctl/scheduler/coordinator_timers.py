"""Named timers of `CoordinatorCore`, and how long a stage may wait.

`Timers` remembers what each `SetTimer` was for. `Patience` holds the deadlines of waiting stages:

- A stage of an outside caller (an open connection) that has waited `queue_timeout_s` in all is
  given up.
- A stage of a workflow may wait far longer than that behind others: what must not happen is that
  it waits for something that never moves. It is given up when, for `queue_timeout_s`, none of its
  models has served anybody, and it has waited that long itself.
- While no connected node can serve its models at all, an outside caller is told after
  `HOMELESS_GRACE_S`; a workflow waits for the node to come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from maestroctl.domain.ids import ModelName, StageId, TimerId
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.effects import CancelTimer, CoordinatorEffect, SetTimer
from maestroctl.scheduler.ordering.stage_queue import QueueClass

Out = list[CoordinatorEffect]
TimerAction = Callable[[float, Out], None]

HOMELESS_GRACE_S = 5.0
"""A node daemon that is restarted, or a link that is re-made, is back within this."""
RETRY_LATER_S = 5.0
"""What a caller is told that nothing serves for now: a node or an engine may be back by then."""
STALL_CHECK_S = 1.0
"""Stalled classes are looked at no oftener than this."""


class Timers:
    """At most one pending timer per name."""

    __slots__ = ("_armed",)

    def __init__(self) -> None:
        self._armed: dict[TimerId, tuple[float, TimerAction]] = {}

    def arm(self, name: str, at_s: float, action: TimerAction, out: Out) -> None:
        """Run `action` at `at_s`; replaces what was pending under the name."""
        timer_id = TimerId(name)
        self._armed[timer_id] = (at_s, action)
        out.append(SetTimer(timer_id, at_s))

    def arm_by(self, name: str, at_s: float, action: TimerAction, out: Out) -> None:
        """The same, unless something earlier is pending under the name."""
        armed = self._armed.get(TimerId(name))
        if armed is None or armed[0] > at_s:
            self.arm(name, at_s, action, out)

    def cancel(self, name: str, out: Out) -> None:
        """Forget the timer, where there is one."""
        timer_id = TimerId(name)
        if self._armed.pop(timer_id, None) is not None:
            out.append(CancelTimer(timer_id))

    def take(self, timer_id: TimerId) -> TimerAction | None:
        """What the timer was for; None when it is not pending any more."""
        armed = self._armed.pop(timer_id, None)
        return None if armed is None else armed[1]


class Patience:
    """Deadlines of waiting stages."""

    __slots__ = ("_deadlines", "_served_s", "timeout_s")

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._deadlines: list[tuple[float, StageId, StageState]] = []  # heap, outside callers
        self._served_s: dict[ModelName, float] = {}  # when a model last began or ended an answer

    def expect(self, stage: StageState, num_waiting: int) -> float:
        """An outside caller's stage waits. Returns when it will be given up."""
        deadline_s = (stage.queued_s or 0.0) + self.timeout_s
        if not stage.is_expiring:
            stage.is_expiring = True
            heappush(self._deadlines, (deadline_s, stage.stage_id, stage))
            if len(self._deadlines) > 2 * num_waiting + 1024:
                self._sweep()
        return deadline_s

    def _sweep(self) -> None:
        for _, _, stage in self._deadlines:
            stage.is_expiring = stage.is_waiting and stage.is_expiring
        self._deadlines = [item for item in self._deadlines if item[2].is_expiring]
        heapify(self._deadlines)

    def overdue(self, now_s: float) -> list[StageState]:
        """Outside callers' stages whose time is up, oldest first; they are forgotten here."""
        found: list[StageState] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now_s or not deadlines[0][2].is_waiting):
            stage = heappop(deadlines)[2]
            stage.is_expiring = False
            if stage.is_waiting:
                found.append(stage)
        return found

    def next_s(self) -> float | None:
        """When the next outside caller's time is up, as far as known."""
        return self._deadlines[0][0] if self._deadlines else None

    def served(self, model: ModelName, now_s: float) -> None:
        """The model began or ended an answer."""
        self._served_s[model] = now_s

    def stalled_since(self, queue_class: QueueClass) -> float:
        """Since when nothing has moved for a class, its own start included."""
        served = [self._served_s.get(model, queue_class.opened_s) for model in queue_class.models]
        return max(queue_class.opened_s, *served)

    def split_stalled(
        self, stages: Iterable[StageState], now_s: float
    ) -> tuple[list[StageState], float | None]:
        """Stages of a stalled class that have waited long enough, and when the next one has."""
        found: list[StageState] = []
        next_s: float | None = None
        for stage in stages:
            due_s = (stage.queued_s or 0.0) + self.timeout_s
            if due_s <= now_s:
                found.append(stage)
            elif next_s is None or due_s < next_s:
                next_s = due_s
        return found, next_s
