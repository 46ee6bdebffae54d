"""What is written of a stage when it ends: what is not known stays unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.live.coordinator.event_bus import EventBus
from maestroctl.live.coordinator.stage_ledger import StageLedger
from maestroctl.scheduler.effects import DispatchStage, ResolveStage
from maestroctl.scheduler.events import StageArrived, StageEnded
from maestroctl.store.rows import ObservationRow, Row
from maestroctl.telemetry.exposition import Telemetry
from maestroctl.testing.coordinator_builders import make_stage


class Kept:
    """In place of a journal."""

    pending = 0
    lag_s = 0.0

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, rows: Iterable[Row]) -> None:
        self.rows += rows


def observation(outcome: Outcome, tool_called: bool | None) -> ObservationRow:
    """Of a stage that ended like this after 30 tokens."""
    journal, stage = Kept(), make_stage()
    ledger = StageLedger(
        cast(Any, journal), Telemetry(), EventBus(), now_s=lambda: 9.0, wall_offset_s=100.0
    )
    name = stage.stage_id
    ledger.arrived(StageArrived(stage, Prediction(20.0, 40.0)), streamed=True)
    ledger.dispatched(
        DispatchStage(
            name, 1, NodeName("n"), ModelName("m"), 1, 1, 50, 90, ServiceClass.INTERACTIVE, 0.0
        ),
        1.0,
    )
    usage = Usage(50, 30)
    ledger.ended(StageEnded(StageId(name), 1, outcome, True, usage, tool_called=tool_called), 5.0)
    ledger.resolved(ResolveStage(name, outcome), 5.0)
    (row,) = (row for row in journal.rows if isinstance(row, ObservationRow))
    return row


@pytest.mark.parametrize("tool_called", [True, False, None])
def test_whether_a_tool_was_called_is_kept_as_it_is_known(tool_called: bool | None) -> None:
    assert observation(Outcome.FINISHED, tool_called).tool_called is tool_called


@pytest.mark.parametrize(
    "outcome", [Outcome.CANCELLED, Outcome.PREEMPTED, Outcome.INTERRUPTED, Outcome.FAILED]
)
def test_a_length_is_a_lower_bound_unless_the_stage_finished(outcome: Outcome) -> None:
    assert observation(outcome, None).censored
    assert not observation(Outcome.FINISHED, None).censored
