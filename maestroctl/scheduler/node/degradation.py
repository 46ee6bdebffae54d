"""How much must give way, and how far: degradation plans of a node (Maestro Algorithm 2).

Every engine contributes at most one choice from its chain (`residency.GiveWayChoice`), with
cumulative freed bytes and cost. Deficit and supply are vectors: one figure per device, and the
host, on which putting an engine to sleep *takes* memory.

| level | action |
|---|---|
| 1 | an idle engine sleeps |
| 2 | a sleeping engine stops, and an idle one that cannot sleep or whose sleep frees too little |
| 3 | an engine on its way to sleep is stopped; a start that nobody is served by yet is killed |
| 4 | an active engine is suspended, its open requests frozen |
| 5 | open stages are aborted |

A busy engine may *drain*: take nothing new and give way at levels 1 and 2 when it is empty. Levels
4 and 5 are for those whose draining took too long (`usable_choices`).

`LruDegradation` uses levels 1 and 2 in the order of the residency policy; `minimum_impact` weighs
all five. Both are given the same views, and the core carries out every action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from maestroctl.domain.ids import HOST_DEVICE, DeviceName, EngineId
from maestroctl.scheduler.node.residency import GiveWayChoice, VictimView

LEVEL_SLEEP = 1
LEVEL_STOP = 2
LEVEL_KILL_START = 3
LEVEL_SUSPEND = 4
LEVEL_ABORT = 5


@dataclass(frozen=True, slots=True)
class DegradationStep:
    """One engine gives way."""

    engine_id: EngineId
    choice: GiveWayChoice


@dataclass(frozen=True, slots=True)
class DegradationPlan:
    """Steps that together free the deficit, in the order they are to be begun."""

    steps: tuple[DegradationStep, ...]

    @property
    def level(self) -> int:
        """Highest level used; 0 for an empty plan."""
        return max((step.choice.level for step in self.steps), default=0)

    @property
    def cost_s(self) -> float:
        """Total cost, seconds."""
        return sum(step.choice.cost_s for step in self.steps)

    @property
    def impact(self) -> tuple[int, int, float, int]:
        """What is minimised, lexicographically: level, harm on it, cost, number of items."""
        rung = max(((s.choice.level, s.choice.harm) for s in self.steps), default=(0, 0))
        return (*rung, self.cost_s, len(self.steps))


class DegradationPolicy(Protocol):
    """Finds a plan, or says that there is none."""

    def plan(
        self,
        deficit: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
        host_free_bytes: int,
        *,
        may_drain: bool,
        partial: bool = False,
        max_level: int = LEVEL_KILL_START,
    ) -> DegradationPlan | None:
        """Choose who gives way.

        Args:
            deficit: bytes missing per device, positive figures only.
            ranked: engines that may give way, as the residency policy ordered them.
            host_free_bytes: host memory that sleeping weights may still take.
            may_drain: busy engines may be told to take nothing new and give way when empty.
            partial: free as much of the deficit as possible rather than all or nothing.
            max_level: how far it may go; see `usable_choices`.

        Returns:
            A plan that frees the deficit; None when there is none (never with `partial`).
        """
        ...


def usable_choices(view: VictimView, *, may_drain: bool, max_level: int) -> Sequence[GiveWayChoice]:
    """What may be asked of the engine.

    An idle one: its chain up to `max_level`. A busy one: nothing, unless it may drain, and then up
    to level 3; from `max_level` 4 on draining has been tried for long enough, and only what ends
    the wait at once is left.
    """
    if not view.busy:
        return [choice for choice in view.choices if choice.level <= max_level]
    if max_level >= LEVEL_SUSPEND:
        return [c for c in view.choices if LEVEL_KILL_START <= c.level <= max_level]
    if not may_drain:
        return []
    return [choice for choice in view.choices if choice.level <= max_level]


class LruDegradation:
    """Levels 1 and 2, in the order given; then items that turn out to be redundant are dropped."""

    def __init__(self, max_level: int = LEVEL_STOP) -> None:
        self._max_level = max_level

    def plan(
        self,
        deficit: Mapping[DeviceName, int],
        ranked: Sequence[VictimView],
        host_free_bytes: int,
        *,
        may_drain: bool,
        partial: bool = False,
        max_level: int = LEVEL_ABORT,
    ) -> DegradationPlan | None:
        """See `DegradationPolicy`; `max_level` only bounds what the policy would do anyway."""
        able = [view for view in ranked if may_drain or not view.busy]
        if not partial and not self._could_free(deficit, able):
            return None
        chosen = _Selection(deficit, host_free_bytes)
        for level in range(LEVEL_SLEEP, min(self._max_level, max_level) + 1):
            for view in able:
                chosen.offer(view, level)
        if not chosen.is_enough() and not partial:
            return None
        chosen.drop_redundant()
        return chosen.plan(ranked)

    def _could_free(self, deficit: Mapping[DeviceName, int], able: Sequence[VictimView]) -> bool:
        """Would the deficit be covered if everybody went as far as levels allow?"""
        for device, missing in deficit.items():
            for view in able:
                missing -= max(
                    (
                        choice.freed_bytes.get(device, 0)
                        for choice in view.choices
                        if choice.level <= self._max_level
                    ),
                    default=0,
                )
                if missing <= 0:
                    break
            else:
                return False
        return True


class _Selection:
    """A choice per engine, what they free together, and whether that is enough."""

    def __init__(self, deficit: Mapping[DeviceName, int], host_free_bytes: int) -> None:
        self._deficit = deficit
        self._host_free = host_free_bytes
        self._chosen: dict[EngineId, GiveWayChoice] = {}
        self._freed: dict[DeviceName, int] = {}  # invariant: the sum over `_chosen`

    def freed_bytes(self, device: DeviceName) -> int:
        return self._freed.get(device, 0)

    def _put(self, engine_id: EngineId, choice: GiveWayChoice) -> None:
        self._take_out(engine_id)
        self._chosen[engine_id] = choice
        for device, num_bytes in choice.freed_bytes.items():
            self._freed[device] = self._freed.get(device, 0) + num_bytes

    def _take_out(self, engine_id: EngineId) -> None:
        present = self._chosen.pop(engine_id, None)
        if present is not None:
            for device, num_bytes in present.freed_bytes.items():
                self._freed[device] -= num_bytes

    def is_enough(self) -> bool:
        return all(self.freed_bytes(device) >= missing for device, missing in self._deficit.items())

    def offer(self, view: VictimView, max_level: int) -> None:
        """Go down the engine's chain as far as it helps.

        Milder choices are tried again at higher levels: a stop that made room on the host lets
        the next engine sleep rather than stop.
        """
        for choice in view.choices:
            if self.is_enough() or choice.level > max_level:
                return
            if self._helps(view.engine_id, choice) and self._host_has_room(view.engine_id, choice):
                self._put(view.engine_id, choice)

    def _host_has_room(self, engine_id: EngineId, choice: GiveWayChoice) -> bool:
        """A choice that takes host memory must find it free, or freed by the others chosen."""
        takes = -choice.freed_bytes.get(HOST_DEVICE, 0)
        others = self.freed_bytes(HOST_DEVICE) - self._own(engine_id, HOST_DEVICE)
        return takes <= 0 or takes <= self._host_free + others

    def _helps(self, engine_id: EngineId, choice: GiveWayChoice) -> bool:
        """It frees more than the engine's present choice on a device that still lacks memory."""
        return any(
            self.freed_bytes(device) < missing
            and choice.freed_bytes.get(device, 0) > self._own(engine_id, device)
            for device, missing in self._deficit.items()
        )

    def _own(self, engine_id: EngineId, device: DeviceName) -> int:
        present = self._chosen.get(engine_id)
        return present.freed_bytes.get(device, 0) if present else 0

    def drop_redundant(self) -> None:
        """Leave out, first chosen first, whatever the rest can do without."""
        if not self.is_enough():
            return
        for engine_id, choice in list(self._chosen.items()):
            self._take_out(engine_id)
            if not self.is_enough() or self._host_overdrawn():
                self._put(engine_id, choice)

    def _host_overdrawn(self) -> bool:
        return self._host_free + self.freed_bytes(HOST_DEVICE) < 0

    def plan(self, ranked: Sequence[VictimView]) -> DegradationPlan:
        """Stops first: a sleep may need the host memory that they free."""
        order = {view.engine_id: rank for rank, view in enumerate(ranked)}
        steps = [DegradationStep(engine_id, choice) for engine_id, choice in self._chosen.items()]
        steps.sort(
            key=lambda step: (
                step.choice.freed_bytes.get(HOST_DEVICE, 0) < 0,
                order[step.engine_id],
            )
        )
        return DegradationPlan(tuple(steps))
