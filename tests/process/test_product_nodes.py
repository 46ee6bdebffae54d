"""Several nodes in two clusters: one killed under load, its return, the round trip."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from maestroctl.cli.wiring import Coordinator
from maestroctl.config.workflow import parse_workflow
from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.messages import ModelAction
from maestroctl.gateway.submit import JobRequest
from tests.support.product import (
    chat,
    processes_under,
    running_coordinator,
    stub_fleet,
    until,
)

MODEL = ModelName("alpha")
NODES = ("local", "near", "far")

MORE_NODES = """
[[cluster]]
name = "edge"
[[cluster]]
name = "abroad"
rtt_ms = 150
[[node]]
name = "near"
cluster = "edge"
memory = "4 GiB"
linger_s = 8
[[node]]
name = "far"
cluster = "abroad"
memory = "4 GiB"
linger_s = 8
[policy]
routing = "maestro"
"""


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Coordinator]:
    """Three daemons, one model on each, awake everywhere."""
    flags = ("--token-interval", "0.03")
    spec = stub_fleet(
        tmp_path, memory="4 GiB", flags=flags, extra=MORE_NODES, model_extra="max_batch = 2"
    )
    async with running_coordinator(spec, tmp_path) as coordinator:
        await until(lambda: len(coordinator.host.snapshots) == len(NODES))
        for name in NODES:
            await until(lambda name=name: _knows(coordinator, name))
            link = coordinator.host.links[NodeName(name)]
            assert (await link.model_action(MODEL, ModelAction.WAKE)).error is None
        await until(lambda: all(_is_awake(coordinator, name) for name in NODES), 30.0)
        yield coordinator


def _knows(coordinator: Coordinator, name: str) -> bool:
    return bool(coordinator.host.snapshots[NodeName(name)].engines)


def _is_awake(coordinator: Coordinator, name: str) -> bool:
    snapshot = coordinator.host.snapshots.get(NodeName(name))
    return snapshot is not None and any(e.status.is_awake for e in snapshot.engines)


async def ask(coordinator: Coordinator, tokens: int) -> int:
    """HTTP status of one request."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            coordinator.url + "/v1/chat/completions", json=chat(f"TOKENS {tokens} go")
        ) as response,
    ):
        await response.read()
        return response.status


def busy_nodes(coordinator: Coordinator) -> Counter[str]:
    return Counter(str(view.node) for view in coordinator.host.core.in_flight())


def daemon_of(tmp_path: Path, name: str) -> psutil.Process:
    words = f"--name {name}"
    (found,) = [
        p
        for p in processes_under(tmp_path)
        if "maestroctl.live.node" in " ".join(p.cmdline()) and words in " ".join(p.cmdline())
    ]
    return found


async def test_work_fills_the_near_nodes_first_and_then_the_far_one(fleet: Coordinator) -> None:
    first = [asyncio.create_task(ask(fleet, 60)) for _ in range(4)]
    await until(lambda: sum(busy_nodes(fleet).values()) == 4)
    assert busy_nodes(fleet)["far"] == 0, "150 ms away"
    more = [asyncio.create_task(ask(fleet, 60)) for _ in range(5)]
    await until(lambda: busy_nodes(fleet)["far"] > 0)
    assert set(await asyncio.gather(*first, *more)) == {200}


async def test_a_node_killed_under_load_loses_no_request_that_had_not_begun(
    fleet: Coordinator, tmp_path: Path
) -> None:
    asked = [asyncio.create_task(ask(fleet, 40)) for _ in range(9)]
    await until(lambda: busy_nodes(fleet)["near"] > 0)
    daemon_of(tmp_path, "near").send_signal(signal.SIGKILL)
    await until(lambda: NodeName("near") not in fleet.host.snapshots)
    assert busy_nodes(fleet)["near"] == 0
    answers = Counter(await asyncio.gather(*asked))
    assert answers[200] >= 6, "the stages of the other nodes are not concerned"
    assert set(answers) <= {200, 502}, "one whose answer had begun ends as failed, and only once"

    await until(lambda: NodeName("near") in fleet.host.snapshots, 40.0)
    await until(lambda: _is_awake(fleet, "near"), 40.0)
    again = [asyncio.create_task(ask(fleet, 60)) for _ in range(6)]
    await until(lambda: busy_nodes(fleet)["near"] > 0)
    assert set(await asyncio.gather(*again)) == {200}


async def test_nobody_waits_for_a_start_where_an_awake_engine_is_free_elsewhere(
    fleet: Coordinator,
) -> None:
    """The near node gives its engine up by hand."""
    answer = await fleet.host.links[NodeName("near")].model_action(MODEL, ModelAction.EVICT)
    assert answer.error is None
    await until(
        lambda: all(
            e.status is EngineStatus.STOPPED for e in fleet.host.snapshots[NodeName("near")].engines
        )
    )
    assert [await ask(fleet, 2) for _ in range(3)] == [200, 200, 200]
    assert not _is_awake(fleet, "near")


async def test_the_round_trip_is_measured_and_shown(fleet: Coordinator) -> None:
    async def shown() -> dict[str, Any] | None:
        async with (
            aiohttp.ClientSession() as session,
            session.get(fleet.url + "/api/ps") as response,
        ):
            document = await response.json()
        rtts = {node["node"]: node["rtt_s"] for node in document["nodes"]}
        return rtts if all(rtts.get(name) for name in NODES) else None

    rtts = await until(shown)
    assert all(0 < rtt_s < 1 for rtt_s in rtts.values())
    nodes = fleet.host.core._tables.fleet.nodes
    assert nodes[NodeName("far")].rtt_s == 0.15, "as declared"
    assert 0 < nodes[NodeName("near")].rtt_s < 0.1, "as measured"


async def test_a_stage_that_one_node_refuses_is_rerouted_and_its_job_completes_on_the_other(
    tmp_path: Path,
) -> None:
    """Neither node has the model awake; the engine that is started first dies before it is ready,
    so its node refuses what it holds for it."""
    spec = stub_fleet(tmp_path, flags=("--start-delay", "3"), extra=MORE_NODES)
    workflow = parse_workflow(
        '[workflow]\nname = "one"\n[[step]]\nname = "s"\nmodels = ["alpha"]\nprompt = "TOKENS 4"\n'
    )
    async with running_coordinator(spec, tmp_path) as coordinator:
        await until(lambda: len(coordinator.host.snapshots) == len(NODES))
        await until(lambda: all(_knows(coordinator, name) for name in NODES))
        job_id = await coordinator.control.submit_job(JobRequest(workflow))
        (first,) = await until(lambda: list(busy_nodes(coordinator)))
        (engine,) = await until(lambda: engines_under(tmp_path))
        engine.kill()

        async def finished() -> dict[str, Any] | None:
            job = await coordinator.control.job(job_id)
            return job if job is not None and job["finished_at"] else None

        job = await until(finished, 30.0)
        assert job["status"] == "finished", job
        assert coordinator.host.core.counters.refused == 1
        assert not _is_awake(coordinator, first), "it would have been ready a second later"
        others = [name for name in NODES if name != first]
        # The answer may come before the snapshot that says so.
        await until(lambda: any(_is_awake(coordinator, name) for name in others))


def engines_under(tmp_path: Path) -> list[psutil.Process]:
    return [p for p in processes_under(tmp_path) if "maestroctl.testing.stub_engine" in p.cmdline()]
