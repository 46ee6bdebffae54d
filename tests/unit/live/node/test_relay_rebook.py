"""A correction reaches the core once its stage is there, and never below what the stage holds."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from maestroctl.domain.ids import EngineId, StageId
from maestroctl.domain.messages import Rebook, StageHeaders
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.node.relay import HeldStage, StageRelay
from maestroctl.scheduler.effects import RefuseStage
from maestroctl.scheduler.events import NodeEvent, StageOffered, StageRebooked

STAGE = StageId("s1")
HEADERS = {
    StageHeaders.STAGE: STAGE,
    StageHeaders.ATTEMPT: "1",
    StageHeaders.MODEL: '"m"',
    StageHeaders.COMMAND: "1.7",
    StageHeaders.TOKENS: "50.150",
    StageHeaders.CLASS: "interactive",
    StageHeaders.KEY: "0.0",
}


class Host:
    """Keeps what the core is told."""

    def __init__(self) -> None:
        self.told: list[NodeEvent] = []

    def post(self, event: NodeEvent) -> None:
        self.told.append(event)

    def pool(self, engine_id: EngineId) -> HttpPool:
        raise AssertionError(engine_id)

    def activation_since(self, engine_id: EngineId, since_s: float) -> tuple[str, float]:
        raise AssertionError((engine_id, since_s))

    async def release(self, engine_id: EngineId, stage_id: StageId) -> None:
        raise AssertionError((engine_id, stage_id))


class Asked:
    """A request of the coordinator."""

    headers = HEADERS

    def answer(self, *said: Any) -> None:
        self.said = said


def correction(booked: int, attempt: int = 1, stage: str = STAGE) -> Rebook:
    return Rebook(StageId(stage), attempt, 1, 8, 50, booked)


async def held_stage(relay: StageRelay) -> tuple[asyncio.Task[None], HeldStage]:
    task = asyncio.ensure_future(relay.handle(cast(Any, Asked())))
    await asyncio.sleep(0)
    return task, relay._held[STAGE]


async def dismiss(relay: StageRelay, task: asyncio.Task[None]) -> None:
    relay.decide(RefuseStage(STAGE, "full"))
    await task


async def test_a_correction_that_overtakes_its_stage_follows_its_offer() -> None:
    host = Host()
    relay = StageRelay(host)
    relay.rebook(correction(90))
    assert host.told == []
    task, held = await held_stage(relay)
    assert [type(event) for event in host.told] == [StageOffered, StageRebooked]
    assert host.told[1] == StageRebooked(STAGE, 1, 1, 8, 50, 90)
    assert held.booked_tokens == 90
    await dismiss(relay, task)


@pytest.mark.parametrize(
    ("booked", "attempt", "told", "kept"),
    [
        pytest.param(300, 1, 300, 300, id="up"),
        pytest.param(60, 1, 120, 120, id="not below what the stage holds"),
        pytest.param(60, 2, 60, 150, id="of another attempt: the core's to judge"),
    ],
)
async def test_a_correction_is_told_with_what_the_stage_holds(
    booked: int, attempt: int, told: int, kept: int
) -> None:
    host = Host()
    relay = StageRelay(host)
    task, held = await held_stage(relay)
    held.num_tokens = 120
    relay.rebook(correction(booked, attempt))
    assert host.told[-1] == StageRebooked(STAGE, attempt, 1, 8, 50, told)
    assert held.booked_tokens == kept
    await dismiss(relay, task)


async def test_corrections_of_stages_that_never_come_are_bounded() -> None:
    relay = StageRelay(Host())
    for number in range(1000):
        relay.rebook(correction(90, stage=f"gone/{number}"))
    assert len(relay._early) <= 64
