"""Multi-level feedback queue over jobs: levels of attained service, first come within a level.

A job starts on level 0 and sinks a level when its attained service passes 2, 4, 8 ... 128 seconds.
It sinks at the boundary between two stages; a running stage is never taken back.

The usual boost to the top would change keys of waiting stages. In its place a level is worth
`max_wait_s` of arrival: a stage is not overtaken from the level above by one that comes that much
later. The waiting bound of all orders (`base`) applies beside that, over all levels.
"""

from __future__ import annotations

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.base import OrderingPolicy

LEVELS = 8
QUANTUM_S = 2.0
"""Service of level 0; each level below has twice as much."""


class Mlfq(OrderingPolicy):
    """Key = arrival + level x max_wait_s.

    Args:
        policy: `max_wait_s` is the worth of a level.
    """

    def __init__(self, policy: PolicySpec) -> None:
        self._level_s = policy.max_wait_s

    def key(
        self,
        stage: StageDescriptor,
        job: JobState,
        prediction: Prediction,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> float:
        """Seconds of the core's time."""
        return stage.arrival_s + self._level_s * level_of(job.attained_s)

    def overtaken_for_s(self) -> float:
        """For how long after a stage becomes ready later ones may overtake it, at most."""
        return self._level_s * (LEVELS - 1)


def level_of(attained_s: float) -> int:
    """0 (top) to LEVELS - 1."""
    level, limit_s = 0, QUANTUM_S
    while level < LEVELS - 1 and attained_s >= limit_s:
        level += 1
        limit_s *= 2.0
    return level
