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

A policy is its `choose`; the names and where they are is in `degradation_policies`. All are given
the same views, and the core carries out every action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


class Need:
    """The deficit vector, and the host memory that may be taken meanwhile.

    Args:
        deficit: bytes missing per device, positive figures only.
        host_free_bytes: host memory that sleeping weights may still take.
        partial: as much of the deficit as possible will do.
    """

    def __init__(
        self, deficit: Mapping[DeviceName, int], host_free_bytes: int, *, partial: bool = False
    ) -> None:
        self.deficit = deficit
        self.devices = tuple(deficit)
        self.missing = tuple(deficit.values())
        self.host_free = host_free_bytes
        self.partial = partial

    def is_met(self, choices: Sequence[GiveWayChoice]) -> bool:
        """Do these together free the deficit within the host's memory?"""
        for device, missing in zip(self.devices, self.missing, strict=True):
            if sum(c.freed_bytes.get(device, 0) for c in choices) < missing:
                return False
        host = [c.freed_bytes.get(HOST_DEVICE, 0) for c in choices]
        return self.host_free + sum(host) >= 0 or min(host, default=0) >= 0


Item = tuple[VictimView, Sequence[GiveWayChoice]]
"""An engine and what it may be asked for, mildest first."""


class DegradationPolicy(ABC):
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
        items = [
            (view, choices)
            for view in ranked
            if (choices := self.offered(view, may_drain=may_drain, max_level=max_level))
        ]
        return self.choose(Need(deficit, host_free_bytes, partial=partial), items)

    def offered(
        self, view: VictimView, *, may_drain: bool, max_level: int
    ) -> Sequence[GiveWayChoice]:
        """What the policy would ask of the engine; nothing = leave it alone."""
        return usable_choices(view, may_drain=may_drain, max_level=max_level)

    @abstractmethod
    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """At most one choice of each item, so that the need is met."""


def usable_choices(view: VictimView, *, may_drain: bool, max_level: int) -> Sequence[GiveWayChoice]:
    """What may be asked of the engine.

    An idle one: its chain up to `max_level`. A busy one: nothing, unless it may drain, and then up
    to level 3; from `max_level` 4 on draining has been tried for long enough, and only what ends
    the wait at once is left.
    """
    if not view.busy:
        if not view.choices or view.choices[-1].level <= max_level:
            return view.choices
        return [choice for choice in view.choices if choice.level <= max_level]
    if max_level >= LEVEL_SUSPEND:
        return [c for c in view.choices if LEVEL_KILL_START <= c.level <= max_level]
    if not may_drain:
        return []
    return [choice for choice in view.choices if choice.level <= max_level]
