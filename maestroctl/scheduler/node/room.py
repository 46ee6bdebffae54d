"""Free memory as one reconciliation pass sees it: what is promised, what is on its way back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from maestroctl.domain.ids import HOST_DEVICE, DeviceName
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.freed import coming_from, is_immovable
from maestroctl.scheduler.node.placement import Activation
from maestroctl.scheduler.node.state import NodeState


class Room:
    """Arithmetic over the books. Lives for one pass.

    Attributes:
        promised: free memory spoken for by earlier claims, bytes per device.
        coming: memory that engines under way to sleep or stop will give back.
    """

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self.promised: dict[DeviceName, int] = dict.fromkeys(state.books.budgets, 0)
        self.coming: dict[DeviceName, int] = dict.fromkeys(state.books.budgets, 0)

    def count_coming(self, engines: Iterable[EngineState]) -> None:
        """Add what is under way already."""
        for engine in engines:
            self.add_coming(coming_from(self._state, engine))

    def shortage(
        self, engine: EngineState, option: Activation, *, coming: bool
    ) -> dict[DeviceName, int]:
        """Bytes missing per device; empty when the option fits (now, or with what is coming)."""
        books = self._state.books
        held = books.holding(engine.engine_id)
        missing = {}
        for device, wanted in option.wanted.items():
            more = wanted - held.get(device, 0)
            free = books.free_bytes(device) - self.promised[device]
            if coming:
                free += self.coming[device]
            if more > max(0, free):
                missing[device] = more - free
        return missing

    def shortage_ever(self, engine: EngineState, option: Activation) -> dict[DeviceName, int]:
        """Bytes missing even if everybody who can gave way."""
        books = self._state.books
        missing = {}
        for device, wanted in option.wanted.items():
            kept = sum(
                books.holding(other.engine_id).get(device, 0)
                for other in self._state.engines.values()
                if other is not engine and is_immovable(other)
            )
            if wanted > books.budgets[device] - kept:
                missing[device] = wanted - (books.budgets[device] - kept)
        return missing

    def overrun(self) -> dict[DeviceName, int]:
        """Bytes booked above a lowered budget, what is coming back not counted."""
        return {
            device: excess - self.coming[device]
            for device, excess in self._state.books.overrun.items()
            if excess > self.coming[device]
        }

    def is_locked(self, option: Activation) -> bool:
        """Is a transition in flight on one of its devices?"""
        return any(device in self._state.locks for device in option.devices)

    def host_free_bytes(self) -> int:
        """Host memory that sleeping weights may still take."""
        if HOST_DEVICE not in self._state.books.budgets:
            return 0
        return self._state.books.free_bytes(HOST_DEVICE) - self.promised[HOST_DEVICE]

    def promise(self, engine: EngineState, option: Activation) -> None:
        """Keep what the option needs from later claims."""
        held = self._state.books.holding(engine.engine_id)
        for device, wanted in option.wanted.items():
            self.promised[device] += max(0, wanted - held.get(device, 0))

    def add_coming(self, freed: Mapping[DeviceName, int]) -> None:
        """Count on memory that will be given back; what is taken is not counted here."""
        for device, num_bytes in freed.items():
            if num_bytes > 0:
                self.coming[device] += num_bytes
