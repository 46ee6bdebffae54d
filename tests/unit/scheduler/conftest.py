"""A coordinator whose tables are checked after every event, and short words for its tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.effects import CoordinatorEffect, DispatchStage, RecordDecision
from maestroctl.scheduler.events import CoordinatorEvent
from maestroctl.scheduler.routing.look_ahead import LookAhead
from maestroctl.testing.coordinator_builders import arrival, make_fleet, make_stage, node_says


class Coordinator:
    """A core, driven by tests: `tell` returns the effects without the decision records."""

    def __init__(self) -> None:
        self.begin()

    def begin(
        self,
        fleet: FleetSpec | None = None,
        *,
        epoch: int = 1,
        max_queued: int = 100,
        look_ahead: LookAhead | None = None,
    ) -> None:
        """A new core; `connect` it to a node first."""
        self.core = CoordinatorCore(
            fleet or make_fleet(), epoch, max_queued=max_queued, look_ahead=look_ahead
        )
        self.records: list[RecordDecision] = []

    def connect(self, at_s: float = 0.0) -> None:
        """Node `n1` with model `m`, idle, two slots."""
        self.tell(node_says(), at_s)

    def tell(self, event: CoordinatorEvent, at_s: float = 0.0) -> list[CoordinatorEffect]:
        """What is to be done because of the event."""
        effects = self.core.handle(event, at_s)
        self.core.validate()
        self.records += [e for e in effects if isinstance(e, RecordDecision)]
        return [effect for effect in effects if not isinstance(effect, RecordDecision)]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    """Not connected to anything yet."""
    it = Coordinator()
    yield it
    it.core.validate()


def sid(name: str) -> StageId:
    return StageId(name)


def dispatch(
    stage: str = "s1",
    seq: int = 1,
    attempt: int = 1,
    node: str = "n1",
    model: str = "m",
    key: float = 0.0,
    prompt_tokens: int = 50,
    booked_tokens: int = 150,
) -> DispatchStage:
    return DispatchStage(
        sid(stage),
        attempt,
        NodeName(node),
        ModelName(model),
        1,
        seq,
        prompt_tokens,
        booked_tokens,
        ServiceClass.INTERACTIVE,
        key,
    )


def fill(coordinator: Coordinator, at_s: float = 0.0) -> None:
    """Take both slots of `n1`."""
    coordinator.tell(arrival(make_stage("a")), at_s)
    coordinator.tell(arrival(make_stage("b")), at_s)
