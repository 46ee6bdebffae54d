"""Streams over real sockets: order, heartbeats, honest ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from maestroctl.errors import Overloaded, RequestError, UpstreamFailed
from maestroctl.gateway.openai_schema import Api
from maestroctl.gateway.streaming import StreamRelay
from tests.gateway_support import (
    FakeReply,
    FakeStages,
    RawClient,
    Running,
    chat,
    chat_events,
    on_uvloop,
    reply_with,
    running_gateway,
    until,
    within,
)

DONE = b"data: [DONE]\n\n"


async def open_stream(running: Running, **fields: Any) -> tuple[RawClient, int, dict[str, str]]:
    client = await RawClient.connect(running)
    await client.send(json.dumps(chat(stream=True, **fields)).encode())
    return client, *await client.read_head()


async def read_rest(client: RawClient) -> tuple[bytes, bool]:
    """All that comes, and whether the transfer encoding ended properly."""
    parts = []
    try:
        while chunk := await client.read_chunk():
            parts.append(chunk)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b"".join(parts), False
    return b"".join(parts), True


def streaming(*chunks: bytes | RequestError | asyncio.Event) -> FakeStages:
    return FakeStages(make=lambda call: reply_with(call, *chunks))


@on_uvloop
async def test_each_chunk_is_forwarded_before_the_next_one_exists() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    events = chat_events(["a", "b"])
    stages = streaming(events[0], gates[0], events[1], gates[1], events[2], gates[2], *events[3:])
    async with running_gateway(stages) as running:
        client, status, headers = await open_stream(running)
        assert status == 200
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["x-maestro-model"] == "qwen3-8b"
        assert headers["cache-control"] == "no-cache"
        for gate, event in zip(gates, events[:3], strict=True):
            assert await client.read_chunk() == event
            gate.set()
        assert await read_rest(client) == (b"".join(events[3:]), True)
        await client.close()


@on_uvloop
async def test_bytes_are_forwarded_unchanged_whatever_they_are() -> None:
    odd = [b"data: {not json\n\n", b"\xff\xfe half an", b" event\n\n", DONE]
    async with running_gateway(streaming(*odd)) as running:
        client, _, _ = await open_stream(running)
        assert await read_rest(client) == (b"".join(odd), True)
        again = await client.post(chat())
        assert again.status == 200
        await client.close()


@pytest.mark.parametrize("asked", [None, {}, {"include_usage": False}, {"include_usage": True}])
@on_uvloop
async def test_whether_usage_was_asked_for_is_passed_on(asked: Any) -> None:
    async with running_gateway() as running:
        client, _, _ = await open_stream(running, stream_options=asked)
        await read_rest(client)
        await client.close()
    assert running.stages.calls[0].wants_usage is (asked == {"include_usage": True})
    assert running.stages.calls[0].stream


@on_uvloop
async def test_waiting_stream_gets_heartbeats_and_then_its_answer() -> None:
    release = asyncio.Event()

    async def wait(_call: Any) -> None:
        await release.wait()

    async with running_gateway(FakeStages(before=wait), heartbeat_s=0.05) as running:
        client, status, headers = await open_stream(running)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        for _ in range(3):
            assert await client.read_chunk() == b": waiting\n\n"
        release.set()
        body, proper = await read_rest(client)
        assert body.replace(b": waiting\n\n", b"") == b"".join(chat_events(["hel", "lo"]))
        assert proper
        await client.close()


@on_uvloop
async def test_suspended_stream_gets_heartbeats_between_whole_events_only() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    events = chat_events(["a"])
    half, rest = events[1][:9], events[1][9:]
    stages = streaming(events[0], first, half, second, rest, *events[2:])
    async with running_gateway(stages, heartbeat_s=0.05) as running:
        client, _, _ = await open_stream(running)
        assert await client.read_chunk() == events[0]
        assert await client.read_chunk() == b": waiting\n\n"
        assert await client.read_chunk() == b": waiting\n\n"
        first.set()
        while (chunk := await client.read_chunk()) == b": waiting\n\n":
            pass
        assert chunk == half
        with pytest.raises(TimeoutError):
            await within(client.reader.readexactly(1), 0.3)
        second.set()
        assert await read_rest(client) == (rest + b"".join(events[2:]), True)
        await client.close()


@on_uvloop
async def test_error_after_heartbeats_is_an_event_and_no_normal_end() -> None:
    release = asyncio.Event()

    async def wait(_call: Any) -> None:
        await release.wait()
        raise Overloaded("no place came free")

    async with running_gateway(FakeStages(before=wait), heartbeat_s=0.05) as running:
        client, status, _ = await open_stream(running)
        assert status == 200
        assert await client.read_chunk() == b": waiting\n\n"
        release.set()
        body, proper = await read_rest(client)
        event = json.loads(body.replace(b": waiting\n\n", b"").removeprefix(b"data: "))
        assert event["error"]["code"] == "overloaded"
        assert not proper
        await client.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","code":400,"param":"messages"}}', "too long"),
        (b'{"object":"error","message":"old style"}', "old style"),
        (b"plain text", "plain text"),
        (b"\xff\xfe", "��"),
        (b"[]", "[]"),
        (b"", "the engine answered 400"),
    ],
    ids=["new", "old", "text", "bytes", "list", "nothing"],
)
@on_uvloop
async def test_engines_4xx_after_heartbeats_is_an_event(body: bytes, message: str) -> None:
    release = asyncio.Event()

    async def wait(_call: Any) -> None:
        await release.wait()

    stages = FakeStages(
        before=wait, make=lambda call: reply_with(call, body, status=400, stream=False)
    )
    async with running_gateway(stages, heartbeat_s=0.05) as running:
        client, _, _ = await open_stream(running)
        await client.read_chunk()
        release.set()
        rest, proper = await read_rest(client)
        event = json.loads(rest.replace(b": waiting\n\n", b"").removeprefix(b"data: "))
        assert event["error"]["message"] == message
        assert not proper
        await client.close()


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES])
@on_uvloop
async def test_stream_that_breaks_ends_with_an_error_event(api: Api) -> None:
    broken = UpstreamFailed("the engine died", code="engine_failed")
    body = {"model": "qwen", "stream": True, "max_tokens": 9, api.content_field: "hi"}
    if api in (Api.CHAT, Api.MESSAGES):
        body["messages"] = chat()["messages"]
    async with running_gateway(streaming(b"data: {}\n\n", broken)) as running:
        client = await RawClient.connect(running)
        await client.send(json.dumps(body).encode(), api.path)
        await client.read_head()
        got, proper = await read_rest(client)
        assert got.startswith(b"data: {}\n\n")
        assert b"[DONE]" not in got
        assert not proper
        named = api in (Api.RESPONSES, Api.MESSAGES)
        assert (b"event: error\n" in got) is named
        event = json.loads(got.rsplit(b"data: ", 1)[1])
        assert event["error"]["message"] == "the engine died"
        assert await within(client.reader.read()) == b""
        await client.close()
    assert running.server.held == 0


@on_uvloop
async def test_error_event_after_half_an_event_starts_on_a_line_of_its_own() -> None:
    stages = streaming(b'data: {"half', UpstreamFailed("died"))
    async with running_gateway(stages) as running:
        client, _, _ = await open_stream(running)
        body, _ = await read_rest(client)
        assert body.startswith(b'data: {"half\n\ndata: {"error"')
        await client.close()


@on_uvloop
async def test_bug_in_the_middle_of_a_stream_is_no_normal_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(_reply: FakeReply) -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise ConnectionResetError("secret")

    def make(call: Any) -> FakeReply:
        return FakeReply(script, call.stage.candidates[0], content_type="text/event-stream")

    async with running_gateway(FakeStages(make=make)) as running:
        client, _, _ = await open_stream(running)
        body, proper = await read_rest(client)
        assert b'"error"' in body
        assert b"secret" not in body
        assert not proper
        await client.close()
    assert "ConnectionResetError" in caplog.text


@on_uvloop
async def test_engine_that_ignores_stream_is_forwarded_whole() -> None:
    stages = FakeStages(make=lambda call: reply_with(call, b'{"choices":[]}', stream=False))
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(stream=True))
        assert (reply.status, reply.body) == (200, b'{"choices":[]}')
        await client.close()


@on_uvloop
async def test_http_1_0_reader_gets_the_bytes() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        body = json.dumps(chat(stream=True)).encode()
        client.writer.write(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await client.read_head()
        assert await within(client.reader.read()) == b"".join(chat_events(["hel", "lo"]))
        await client.close()


@on_uvloop
async def test_reader_that_stalls_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made = StreamRelay.__init__

    def impatient(self: StreamRelay, *args: Any) -> None:
        made(self, *args, stall_s=0.2)

    monkeypatch.setattr(StreamRelay, "__init__", impatient)

    async def endless(_reply: FakeReply) -> AsyncIterator[bytes]:
        while True:
            yield b"data: " + b"x" * 100_000 + b"\n\n"

    def make(call: Any) -> FakeReply:
        return FakeReply(endless, call.stage.candidates[0], content_type="text/event-stream")

    async with running_gateway(FakeStages(make=make), heartbeat_s=0.05) as running:
        client, _, _ = await open_stream(running)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: running.stages.replies and running.stages.replies[0].ended.is_set())
        assert running.stages.replies[0].how == "withdrawn"
        await until(lambda: running.server.held == 0)
        client.writer.transport.abort()


# --- many ---------------------------------------------------------------------------------------


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def _one_stream(running: Running, number: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.server.port)
    client = RawClient(reader, writer)
    await client.send(json.dumps(chat(f"n{number}", stream=True)).encode())
    await client.read_head()
    body, proper = await read_rest(client)
    await client.close()
    assert proper
    return body


@on_uvloop
async def test_a_thousand_streams_at_once_and_nothing_is_left() -> None:
    release = asyncio.Event()
    events = chat_events(["tok "] * 20)
    stages = FakeStages(make=lambda call: reply_with(call, events[0], release, *events[1:]))
    async with running_gateway() as running:  # what the loop itself opens at first use
        await _one_stream(running, 0)
    gc.collect()
    descriptors, tasks = open_descriptors(), len(asyncio.all_tasks())
    async with running_gateway(stages) as running:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            streams = [group.create_task(_one_stream(running, i)) for i in range(1000)]
            await until(lambda: running.server.held == 1000, 50)
            release.set()
        assert {stream.result() for stream in streams} == {b"".join(events)}
        assert running.server.held == 0
        assert {reply.how for reply in stages.replies} == {"finished"}
    await until(lambda: open_descriptors() <= descriptors)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


@on_uvloop
async def test_listener_is_free_again_after_the_stop() -> None:
    async with running_gateway() as running:
        port = running.server.port
    with socket.create_server(("127.0.0.1", port)):
        pass
    assert Path("/proc/self/fd").exists()
