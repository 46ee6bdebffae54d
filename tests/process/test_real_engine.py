"""The whole product with a real model in a real engine: workflows and the official client.

The engine's environment and the converted model are found as a user's would be, under
``MAESTROCTL_HOME``. Without them the tests are skipped, unless ``MAESTROCTL_REQUIRE_ENGINE=1``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.config import load_workflow, parse_fleet
from maestroctl.config.profile import load_profile
from maestroctl.config.shipped import shipped_workflows
from maestroctl.config.starter import starter_files
from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.errors import MaestroError
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.engine.factory import find_capabilities
from maestroctl.live.engine.identity import ipc_dir, load_identities
from tests.support.cli import run
from tests.support.product import until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    """The starter fleet, as ``init`` writes it, with its state in a folder of the test."""
    try:
        await find_capabilities(EngineSpec("default", EngineKind.VLLM_CPU))
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no real engine here: {exc}")
    state: Path = tmp_path_factory.mktemp("state")
    text = starter_files()["fleet.toml"].replace("127.0.0.1:8080", "127.0.0.1:0")
    environ = {"MAESTROCTL_STATE": f"sqlite:///{state / 'state.db'}"}
    fleet = parse_fleet(text, environ=environ).spec
    coordinator = Coordinator(fleet, CoordinatorOptions(home=state / "home"))
    await coordinator.start()
    yield coordinator
    folders = _folders_of_inner_sockets(state / "home")
    assert folders, "vLLM's own sockets are somewhere else"
    await coordinator.stop()
    assert not any(folder.exists() for folder in folders)


def _folders_of_inner_sockets(home: Path) -> list[Path]:
    """Where vLLM, which removes none, makes the sockets between its processes."""
    engines = [one for node in (home / "nodes").iterdir() for one in load_identities(node)]
    folders = [ipc_dir(Path(engine.socket_path)) for engine in engines]
    return [folder for folder in folders if any(path.is_socket() for path in folder.iterdir())]


@pytest.mark.parametrize("name", ["code_review", "research"])
async def test_example_workflow_runs_on_a_real_model(name: str, coordinator: Coordinator) -> None:
    workflow = load_workflow(shipped_workflows()[name], coordinator.fleet)
    job_id = await coordinator.control.submit_job(JobRequest(workflow, "coffee and tea"))

    async def finished() -> dict[str, Any] | None:
        job = await coordinator.control.job(job_id)
        return job if job is not None and job["status"] != "running" else None

    job = await until(finished, limit_s=400)
    assert job["status"] == "finished", job
    assert job["output"].strip()
    assert {step["step"] for step in job["steps"]} == set(workflow.steps)


@pytest_asyncio.fixture(loop_scope="module")
async def client(coordinator: Coordinator) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client, told nothing but the address."""
    url = f"{coordinator.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]


async def until_idle(coordinator: Coordinator) -> None:
    def is_idle() -> bool:
        engines = [engine for node in coordinator.control.nodes() for engine in node.engines]
        return not len(coordinator.host.calls) and all(
            engine.num_running == engine.kv_booked_bytes == 0 for engine in engines
        )

    await until(is_idle, limit_s=30)


async def test_the_official_client_chats(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=16, temperature=0
    )
    assert answer.model == "smollm2"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 16


async def test_a_stream_gives_the_same_text_as_a_whole_answer(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=24, temperature=0
    )
    stream = await client.chat.completions.create(
        model="smollm2", messages=MESSAGES, max_tokens=24, temperature=0, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert all(chunk.usage is None for chunk in chunks), "usage was not asked for"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


async def test_usage_comes_in_a_stream_that_asks_for_it(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    last = [chunk async for chunk in stream][-1]
    assert last.usage is not None
    assert last.usage.completion_tokens == 8


async def test_a_request_with_tools_is_served(client: openai.AsyncOpenAI) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    answer = await client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[tool],
        max_tokens=32,
    )
    choice = answer.choices[0]
    assert choice.message.content or choice.message.tool_calls


async def test_a_cancelled_stream_frees_the_engine(
    client: openai.AsyncOpenAI, coordinator: Coordinator
) -> None:
    stream = await client.chat.completions.create(
        model="smollm2",
        messages=MESSAGES,
        max_tokens=1500,
        stream=True,
        extra_body={"min_tokens": 1500},
    )
    async for _ in stream:
        break
    await stream.close()
    await until_idle(coordinator)


async def test_the_engines_own_4xx_reaches_the_client(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(
            model="smollm2", messages=MESSAGES, max_tokens=1_000_000
        )
    assert caught.value.status_code == 400


async def test_a_sleeping_model_wakes_for_a_request_and_answers_the_same(
    client: openai.AsyncOpenAI, coordinator: Coordinator
) -> None:
    async def ask() -> str | None:
        answer = await client.chat.completions.create(
            model="smollm2", messages=MESSAGES, max_tokens=24, temperature=0
        )
        return answer.choices[0].message.content

    before = await ask()
    await until_idle(coordinator)
    name = ModelName("smollm2")
    assert (await coordinator.control.model_action(name, ModelAction.SLEEP)).error is None

    def is_asleep() -> bool:
        (node,) = coordinator.control.nodes()
        return node.engines[0].status is EngineStatus.SLEEPING

    await until(is_asleep)
    assert await ask() == before


async def test_quick_profile_of_a_real_engine(tmp_path: Path) -> None:
    """Not on the module's coordinator: the command starts an engine of its own."""
    done = await run("profile", "smollm2", "--quick", "--out", tmp_path, "--json", limit_s=400)
    assert done.code == 0, done.err
    (written,) = done.document["profiles"]
    record = load_profile(Path(written["path"]))
    assert record.missing == ()
    assert record.costs.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert record.num_blocks > 0
    assert 0 < record.costs.wake_s < record.costs.cold_start_s
    assert record.costs.context_bytes < record.costs.awake_bytes
    assert record.check is not None
    assert record.check.batches == (1, 16)
    assert record.check.median_error < 0.5, "a machine that others use is measured badly, not wrong"
