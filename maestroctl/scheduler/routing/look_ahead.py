"""Advice to nodes on what a workflow will need next.

At a dispatch the core asks the look-ahead which models are likely wanted soon and where, and
passes its answer on as `AdvisePrewarm`. The node decides; an advice is never a booking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.routing.fleet_state import FleetState


class PrewarmAdvice(NamedTuple):
    """`model` is likely needed on `node` at `expected_at_s`, in the core's time."""

    node: NodeName
    model: ModelName
    probability: float
    expected_at_s: float


class LookAhead(Protocol):
    """Looks at what follows a stage in its job."""

    def advise(self, stage: StageState, fleet: FleetState, now_s: float) -> Sequence[PrewarmAdvice]:
        """`stage` has just been dispatched (`stage.job`, `stage.place`)."""
        ...


class NoLookAhead:
    """Engines are woken when a stage arrives, not before."""

    def advise(
        self,
        stage: StageState,  # noqa: ARG002
        fleet: FleetState,  # noqa: ARG002
        now_s: float,  # noqa: ARG002
    ) -> Sequence[PrewarmAdvice]:
        """Nothing."""
        return ()
