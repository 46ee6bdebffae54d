"""Levels 4 and 5 of degradation in the live service: memory for one of two models, both wanted.

The pressure is made by the fleet file: a node that holds one awake engine, and next to no patience
with a busy model. What gives way are real processes; the requests all end well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from maestroctl.cli.wiring import Coordinator
from maestroctl.config.fleet import parse_fleet
from maestroctl.domain.engine import EngineStatus
from maestroctl.replay.run import replay_log
from tests.support.callers import BATCH, NODE, Stream, ask, status_of, wake
from tests.support.product import running_coordinator, stub_fleet_toml, until

IMPATIENT = '[policy]\ngroup_wait_s = "0.2s"\ndrain_wait_s = "0.3s"\n'
ONE_AWAKE = "3850 MiB"
"""An awake stub takes 1,972 MiB, 1,909 with the least KV; suspended or asleep 1,812."""
LONG, SHORT = "TOKENS 80 count", "TOKENS 3 go"


def two_models(tmp_path: Path, *, version: str) -> Any:
    """A fleet of two models, one of which can be awake; a long answer takes about four seconds."""
    text = stub_fleet_toml(
        tmp_path,
        models={"alpha": (), "beta": ()},
        memory=ONE_AWAKE,
        flags=("--token-interval", "0.05"),
        extra=IMPATIENT,
    )
    return parse_fleet(text.replace('version = "0.32.0"', f'version = "{version}"')).spec


@pytest.fixture
async def can_suspend(tmp_path: Path) -> AsyncIterator[Coordinator]:
    async with running_coordinator(two_models(tmp_path, version="0.32.0"), tmp_path) as coordinator:
        yield coordinator


@pytest.fixture
async def cannot_suspend(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """Engines of a version before suspension was possible."""
    async with running_coordinator(two_models(tmp_path, version="0.26.0"), tmp_path) as coordinator:
        yield coordinator


def node_log(tmp_path: Path) -> str:
    return (tmp_path / "home" / "events" / "node-local.jsonl").read_text()


async def test_level_4_a_stream_is_suspended_for_another_model_and_goes_on_with_the_same_text(
    can_suspend: Coordinator, tmp_path: Path
) -> None:
    undisturbed = (await ask(can_suspend, LONG, "alpha"))[1]
    stream = Stream(can_suspend, LONG, "alpha")
    await until(lambda: stream.text)
    beta = asyncio.create_task(ask(can_suspend, SHORT, "beta"))
    await until(lambda: status_of(can_suspend, "alpha") is EngineStatus.SUSPENDED)
    assert (await beta)[0] == 200
    assert stream.ended is None, "it is frozen until beta has been served"
    await stream.task
    assert (stream.text, stream.ended) == (undisturbed, "stop")
    await can_suspend.stop()
    assert "SuspendEngine" in node_log(tmp_path)
    assert "ResumeEngine" in node_log(tmp_path)
    for log in (tmp_path / "home" / "events").glob("*.jsonl"):
        assert replay_log(log).difference is None


async def test_level_5_a_batch_request_that_has_not_begun_to_answer_goes_back_to_the_queue(
    cannot_suspend: Coordinator, tmp_path: Path
) -> None:
    await wake(cannot_suspend, "alpha")
    slow = asyncio.create_task(ask(cannot_suspend, LONG, "alpha", BATCH))
    await until(lambda: any(e.num_running for e in cannot_suspend.host.snapshots[NODE].engines))
    assert (await ask(cannot_suspend, SHORT, "beta"))[0] == 200
    assert not slow.done(), "its first attempt was given up for beta"
    status, text = await slow
    assert status == 200
    assert text == (await ask(cannot_suspend, LONG, "alpha"))[1]
    await cannot_suspend.stop()
    assert "its memory was needed" in node_log(tmp_path)


async def test_level_5_leaves_a_stream_that_has_begun_alone(cannot_suspend: Coordinator) -> None:
    await wake(cannot_suspend, "alpha")
    stream = Stream(cannot_suspend, LONG, "alpha")
    await until(lambda: stream.text)
    assert (await ask(cannot_suspend, SHORT, "beta"))[0] == 200
    assert stream.task.done(), "beta had to wait for its end"
    assert stream.ended == "stop"
