"""The official OpenAI client, unmodified, against the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from maestroctl.errors import Overloaded, UpstreamFailed
from tests.gateway_support import (
    FakeStages,
    Running,
    chat,
    chat_document,
    chat_events,
    reply_with,
    running_gateway,
    until,
    within,
)

MESSAGES: Any = chat()["messages"]


@asynccontextmanager
async def client_of(
    running: Running, base: str = "/v1", **options: Any
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=running.url + base,
        api_key="anything",
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        **{"max_retries": 0, **options},
    ) as client:
        yield client


async def test_chat_stream_and_models() -> None:
    async with running_gateway() as running, client_of(running) as client:
        answer = await client.chat.completions.create(model="qwen", messages=MESSAGES)
        assert answer.choices[0].message.content == "hello"
        stream = await client.chat.completions.create(model="qwen", messages=MESSAGES, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == "hello"
        assert (await client.models.list()).data[0].id == "qwen3-8b"
        assert (await client.models.retrieve("org/tiny.model-1")).id == "org/tiny.model-1"


async def test_conversation_with_a_tool_is_one_job() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    answers = [chat_document("", tool_calls=[call]), chat_document("done")]
    stages = FakeStages(make=lambda c: reply_with(c, json.dumps(answers.pop(0)).encode()))
    async with running_gateway(stages) as running, client_of(running) as client:
        first = await client.chat.completions.create(model="qwen", messages=MESSAGES)
        message: Any = first.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
        again = await client.chat.completions.create(
            model="qwen", messages=[*MESSAGES, message, result]
        )
    assert again.choices[0].message.content == "done"
    assert stages.calls[0].stage.job_id == stages.calls[1].stage.job_id


async def test_job_by_base_url_and_by_extra_body() -> None:
    async with running_gateway() as running, client_of(running, "/w/flow/j/job-7/v1") as client:
        await client.chat.completions.create(
            model="qwen", messages=MESSAGES, extra_body={"maestro": {"role": "critic"}}
        )
    stage = running.stages.calls[0].stage
    assert (stage.workflow, stage.job_id, stage.role) == ("flow", "job-7", "critic")
    assert "maestro" not in running.stages.calls[0].body


async def test_errors_have_the_clients_own_types() -> None:
    async with running_gateway() as running, client_of(running) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.NotFoundError) as missing:
            await create(model="nope", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await create(model="qwen", messages=[])
        assert bad.value.param == "messages"


async def test_full_gateway_is_retried_by_the_client() -> None:
    errors = [Overloaded("full", retry_after_s=0.1)]

    async def fail_once(_call: Any) -> None:
        if errors:
            raise errors.pop()

    async with (
        running_gateway(FakeStages(before=fail_once)) as running,
        client_of(running, max_retries=1) as client,
    ):
        answer = await client.chat.completions.create(model="qwen", messages=MESSAGES)
    assert answer.choices[0].message.content == "hello"
    assert len(running.stages.calls) == 2


async def test_stream_that_breaks_raises_in_the_client() -> None:
    events = chat_events(["half"])[:2]
    broken = UpstreamFailed("the engine died")
    stages = FakeStages(make=lambda call: reply_with(call, *events, broken))
    async with running_gateway(stages) as running, client_of(running) as client:
        stream = await client.chat.completions.create(model="qwen", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="the engine died"):
            [chunk async for chunk in stream]


async def test_cancelled_stream_is_withdrawn() -> None:
    never = asyncio.Event()
    stages = FakeStages(make=lambda call: reply_with(call, chat_events([])[0], never))
    async with running_gateway(stages) as running, client_of(running) as client:
        stream = await client.chat.completions.create(model="qwen", messages=MESSAGES, stream=True)
        await within(anext(aiter(stream)))
        await stream.close()
        await within(stages.replies[0].ended.wait())
        await until(lambda: running.server.held == 0)
    assert stages.replies[0].how == "withdrawn"
