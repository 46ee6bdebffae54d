"""One device of a simulated node, on which engines slow each other down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maestroctl.estimate.service_time import estimate_slowdown

if TYPE_CHECKING:
    from maestroctl.sim.engine_model import EngineModel


class Device:
    """Who runs iterations on it at the moment.

    Attributes:
        engines: those that are up.
    """

    __slots__ = ("_num_busy", "engines")

    def __init__(self) -> None:
        self.engines: list[EngineModel] = []
        self._num_busy = 0

    def slowdown(self, gamma: float) -> float:
        """Factor of an iteration that begins now: with k busy engines 1 + (gamma - 1)(k - 1).

        Args:
            gamma: factor of two busy engines.
        """
        return estimate_slowdown(gamma, self._num_busy - 1)

    def flip(self, engine: EngineModel, is_busy: bool) -> None:
        """`engine` begins or ceases to run iterations: the others get slower or faster."""
        self._num_busy += 1 if is_busy else -1
        for other in self.engines:
            if other is not engine:
                other.interrupt()
