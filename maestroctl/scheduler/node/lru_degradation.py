"""Levels 1 and 2 in the order of the residency policy: the baseline of Algorithm 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from maestroctl.domain.ids import HOST_DEVICE, DeviceName, EngineId
from maestroctl.scheduler.node.degradation import (
    LEVEL_SLEEP,
    LEVEL_STOP,
    DegradationPlan,
    DegradationPolicy,
    DegradationStep,
    Item,
    Need,
)
from maestroctl.scheduler.node.residency import GiveWayChoice, VictimView


class LruDegradation(DegradationPolicy):
    """In the order given, level by level; then items that turn out to be redundant are dropped.

    Args:
        max_level: the highest it uses.
    """

    def __init__(self, max_level: int = LEVEL_STOP) -> None:
        self._max_level = max_level

    def offered(
        self, view: VictimView, *, may_drain: bool, max_level: int
    ) -> Sequence[GiveWayChoice]:
        """Busy engines may only drain."""
        if view.busy and not may_drain:
            return ()
        return [c for c in view.choices if c.level <= min(self._max_level, max_level)]

    def choose(self, need: Need, items: Sequence[Item]) -> DegradationPlan | None:
        """See `DegradationPolicy`."""
        if not need.partial and not _could_free(need.deficit, items):
            return None
        chosen = _Selection(need.deficit, need.host_free)
        for level in range(LEVEL_SLEEP, self._max_level + 1):
            for view, choices in items:
                chosen.offer(view.engine_id, choices, level)
        if not chosen.is_enough() and not need.partial:
            return None
        chosen.drop_redundant()
        return chosen.plan(items)


def _could_free(deficit: Mapping[DeviceName, int], items: Sequence[Item]) -> bool:
    """Would the deficit be covered if everybody went as far as levels allow?"""
    for device, missing in deficit.items():
        for _, choices in items:
            missing -= max(choice.freed_bytes.get(device, 0) for choice in choices)
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

    def offer(self, engine_id: EngineId, choices: Sequence[GiveWayChoice], max_level: int) -> None:
        """Go down the engine's chain as far as it helps.

        Milder choices are tried again at higher levels: a stop that made room on the host lets
        the next engine sleep rather than stop.
        """
        for choice in choices:
            if self.is_enough() or choice.level > max_level:
                return
            if self._helps(engine_id, choice) and self._host_has_room(engine_id, choice):
                self._put(engine_id, choice)

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

    def plan(self, items: Sequence[Item]) -> DegradationPlan:
        """Stops first: a sleep may need the host memory that they free."""
        order = {view.engine_id: rank for rank, (view, _) in enumerate(items)}
        steps = [DegradationStep(engine_id, choice) for engine_id, choice in self._chosen.items()]
        steps.sort(
            key=lambda step: (
                step.choice.freed_bytes.get(HOST_DEVICE, 0) < 0,
                order[step.engine_id],
            )
        )
        return DegradationPlan(tuple(steps))
