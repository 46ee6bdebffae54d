"""Callers who go away at every possible moment: what they held is free within 100 ms."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.gateway_support import (
    FakeReply,
    FakeStages,
    RawClient,
    chat,
    chat_events,
    on_uvloop,
    reply_with,
    running_gateway,
    until,
    within,
)

LIMIT_S = 0.1


async def leave(client: RawClient, how: str) -> float:
    """Close politely or not; when."""
    left_s = time.perf_counter()
    if how == "reset":
        client.writer.transport.abort()
    else:
        client.writer.close()
    return left_s


async def forever(_call: Any = None) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@on_uvloop
async def test_leaving_while_queued_cancels_the_stage(stream: bool, how: str) -> None:
    stages = FakeStages(before=forever)
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=stream)).encode())
        await within(stages.entered.wait())
        left_s = await leave(client, how)
        await within(stages.cancelled.wait())
        assert time.perf_counter() - left_s < LIMIT_S
        await until(lambda: running.server.held == 0)
    assert running.gateway.gate.outcomes["chat/completions", 499] == 1


@on_uvloop
async def test_leaving_between_heartbeats_cancels_the_stage() -> None:
    stages = FakeStages(before=forever)
    async with running_gateway(stages, heartbeat_s=0.05) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=True)).encode())
        await client.read_head()
        await client.read_chunk()
        left_s = await leave(client, "close")
        await within(stages.cancelled.wait())
        assert time.perf_counter() - left_s < LIMIT_S


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("stream", [False, True])
@on_uvloop
async def test_leaving_after_the_first_byte_withdraws_the_stage(stream: bool, how: str) -> None:
    begun = asyncio.Event()

    async def script(_reply: FakeReply) -> AsyncIterator[bytes]:
        yield chat_events([])[0] if stream else b'{"half":'
        begun.set()
        await forever()

    def make(call: Any) -> FakeReply:
        kind = "text/event-stream" if stream else "application/json"
        return FakeReply(script, call.stage.candidates[0], content_type=kind)

    stages = FakeStages(make=make)
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=stream)).encode())
        await within(begun.wait())
        left_s = await leave(client, how)
        await within(stages.replies[0].ended.wait())
        assert time.perf_counter() - left_s < LIMIT_S
        assert stages.replies[0].how == "withdrawn"
        assert stages.replies[0].left == 1
        await until(lambda: running.server.held == 0)


@pytest.mark.parametrize("how", ["close", "reset"])
@on_uvloop
async def test_leaving_while_the_gateway_is_writing_withdraws_the_stage(how: str) -> None:
    async def endless(_reply: FakeReply) -> AsyncIterator[bytes]:
        while True:
            yield b"data: " + b"x" * 50_000 + b"\n\n"
            await asyncio.sleep(0)

    def make(call: Any) -> FakeReply:
        return FakeReply(endless, call.stage.candidates[0], content_type="text/event-stream")

    stages = FakeStages(make=make)
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=True)).encode())
        await client.read_head()
        await client.read_chunk()
        left_s = await leave(client, how)
        await within(stages.replies[0].ended.wait())
        assert time.perf_counter() - left_s < LIMIT_S
        assert stages.replies[0].how == "withdrawn"


@on_uvloop
async def test_leaving_before_the_body_is_complete_frees_the_place() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.send(b'{"model":', length=1000)
        await until(lambda: running.server.held == 1)
        left_s = await leave(client, "close")
        await until(lambda: running.server.held == 0)
        assert time.perf_counter() - left_s < LIMIT_S
    assert not running.stages.calls


@on_uvloop
async def test_leaving_with_pipelined_requests_cancels_the_one_that_runs() -> None:
    stages = FakeStages(before=forever)
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        for _ in range(3):
            await client.send(json.dumps(chat()).encode())
        await within(stages.entered.wait())
        await leave(client, "close")
        await within(stages.cancelled.wait())
        await until(lambda: running.server.held == 0)
    assert len(stages.calls) == 1


@on_uvloop
async def test_leaving_between_reply_and_first_chunk_withdraws_it() -> None:
    """The generator of a reply that was never iterated runs no code: `leave` must be called."""
    stages = FakeStages()
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)

        def make(call: Any) -> FakeReply:
            client.writer.transport.abort()
            return reply_with(call, *chat_events(["a"] * 2000), stream=True)

        stages.make = make
        await client.send(json.dumps(chat(stream=True)).encode())
        await until(lambda: stages.replies and stages.replies[0].left == 1)
        await until(lambda: running.server.held == 0)


@on_uvloop
async def test_readers_of_events_may_leave_any_time() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.send(path="/api/events", method="GET")
        await client.read_head()
        await client.read_chunk()
        await until(lambda: running.control.open_feeds == 1)
        await leave(client, "close")
        await until(lambda: running.control.open_feeds == 0)
