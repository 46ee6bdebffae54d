"""Requests over real sockets: what is forwarded, what is refused, and in which shape."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import Overloaded, Unavailable, UpstreamFailed
from maestroctl.gateway import inference
from maestroctl.gateway.intake import read_body
from maestroctl.gateway.openai_schema import Api
from tests.gateway_support import (
    FakeControl,
    FakeStages,
    RawClient,
    body_of,
    chat,
    chat_document,
    make_fleet,
    reply_with,
    running_gateway,
    within,
)

CONTENT: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"prompt": "hi"},
    Api.EMBEDDINGS: {"input": ["hi"]},
    Api.RESPONSES: {"input": "hi"},
    Api.MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}


@pytest.mark.parametrize("prefix", ["", "/j/job-1", "/w/flow/j/job-1"])
@pytest.mark.parametrize("api", Api)
async def test_every_endpoint_forwards_below_every_prefix(api: Api, prefix: str) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post({"model": "qwen", **CONTENT[api]}, prefix + api.path)
        await client.close()
    assert (reply.status, reply.json()) == (200, chat_document())
    call = running.stages.calls[0]
    assert call.path == api.path
    assert body_of(call) == {"model": "qwen", **CONTENT[api]}
    assert call.stage.candidates == ("qwen3-8b",)
    assert reply.headers["x-maestro-model"] == "qwen3-8b"
    assert reply.headers["x-maestro-job"] == call.stage.job_id
    if prefix:
        assert call.stage.job_id == "job-1"
        assert call.stage.workflow == ("flow" if "flow" in prefix else "")


async def test_claims_arrive_in_the_descriptor() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        sent = {
            "X-Maestro-Role": "coder",
            "X-Maestro-Class": "batch",
            "X-Maestro-Deadline": "30",
            "X-Request-Id": "my-id",
        }
        reply = await client.post(chat(maestro={"job": "j1", "stage": "code"}), headers=sent)
        again = await client.post(chat(), "/j/j1/v1/chat/completions", headers=sent)
        now_s = asyncio.get_running_loop().time()
        await client.close()
    first, second = (call.stage for call in running.stages.calls)
    assert (first.job_id, first.step, first.role) == ("j1", "code", "coder")
    assert first.service_class is ServiceClass.BATCH
    assert first.deadline_s == pytest.approx(now_s + 30, abs=5)
    assert (second.position, second.invocation_index) == (1, 1)
    assert reply.headers["x-request-id"] == again.headers["x-request-id"] == "my-id"
    assert "maestro" not in running.stages.calls[0].body


async def test_group_gives_all_its_models_in_order() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.post(chat(model="coder"))
        await client.post(chat(model="auto"))
        await client.close()
    assert running.stages.calls[0].stage.candidates == ("qwen3-8b", "org/tiny.model-1")
    assert len(running.stages.calls[1].stage.candidates) == 3


@pytest.mark.parametrize(
    "name",
    [
        "nope",
        "qwen3-8",
        "a/b/c",
        "a:b",
        "a b",
        "模",
        "../../etc/passwd",
        "x" * 10_000,
        "\u0000",
        "💥",
    ],
    ids=lambda name: name[:12].encode("unicode_escape").decode(),
)
async def test_unknown_model_is_404_and_names_known_ones(name: str) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(model=name))
        await client.close()
    error = reply.json()["error"]
    assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "qwen3-8b" in error["message"]
    assert len(error["message"]) < 600
    assert not running.stages.calls


async def test_nearest_name_is_suggested() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(model="qwen3-8B"))
        await client.close()
    assert "Did you mean 'qwen3-8b'?" in reply.json()["error"]["message"]


@pytest.mark.parametrize("name", ["org/tiny.model-1", "模型"])
async def test_exotic_names_work_everywhere(name: str) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(model=name))
        by_path = await client.get(f"/v1/models/{quote(name)}")
        encoded = await client.get(f"/v1/models/{quote(name, safe='')}")
        await client.close()
    assert reply.status == 200
    assert running.stages.calls[0].stage.candidates == (name,)
    assert by_path.json()["id"] == encoded.json()["id"] == name


async def test_deep_and_huge_values_pass_unchanged() -> None:
    extra = (
        b'"deep":' + b"[" * 300 + b"]" * 300 + b',"big":' + b"9" * 5000 + b',"float":1.10,"x":1e999'
    )
    body = b'{"model":"qwen3-8b","messages":[{"role":"user","content":"x"}],' + extra + b"}"
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(body)
        await client.close()
    assert reply.status == 200
    assert extra in msgspec.json.encode(dict(running.stages.calls[0].body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"a":' * 50_000,
        b'{"model": 1}',
        b'{"model": "qwen"}',
        b"\xff" * 50,
        json.dumps(chat(max_tokens=0)).encode(),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("api", [Api.CHAT, Api.MESSAGES])
async def test_bad_body_is_400_in_the_dialect_and_the_connection_lives(
    api: Api, body: bytes
) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(body, api.path)
        after = await client.post({"model": "qwen", **CONTENT[api]}, api.path)
        await client.close()
    assert (reply.status, after.status) == (400, 200)
    document = reply.json()
    assert document.get("type") == ("error" if api is Api.MESSAGES else None)
    assert set(document["error"]) == {"message", "type", "param", "code"}
    assert document["error"]["type"] == "invalid_request_error"
    assert len(running.stages.calls) == 1


async def test_fuzzed_bodies_never_get_a_500() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        bodies = _fuzzed_bodies()
        for path, body in bodies:
            reply = await client.post(body, path)
            assert reply.status in (200, 400, 404), (path, body, reply.body)
            reply.json()
        await client.close()
    assert len(bodies) > 300


def _fuzzed_bodies() -> list[tuple[str, bytes]]:
    """Bodies drawn by Hypothesis; the drawing is not async, the sending is."""
    drawn: list[tuple[str, bytes]] = []
    scalar = (
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False)
    )
    names = ["role", "content", "type", "text", "tool_calls", "function", "name", "id", "arguments"]
    inner = st.recursive(
        scalar,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(names), x, max_size=5),
        max_leaves=12,
    )
    fields = ["messages", "prompt", "input", "tools", "stop", "system", "metadata", "maestro", "n"]

    @given(
        path=st.sampled_from([api.path for api in Api]),
        document=st.dictionaries(st.sampled_from(fields), inner, max_size=5),
        usual=st.booleans(),
        cut=st.integers(0, 400),
    )
    @settings(
        max_examples=400, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    def draw(path: str, document: dict[str, Any], usual: bool, cut: int) -> None:
        content = CONTENT[next(api for api in Api if api.path == path)] if usual else {}
        data = json.dumps({"model": "qwen", **document, **content}).encode("utf-8", "surrogatepass")
        drawn.append((path, data[:cut] if cut < 40 else data))

    draw()
    return drawn


# --- sizes --------------------------------------------------------------------------------------


async def test_too_large_a_body_is_refused_by_its_length_alone() -> None:
    async with running_gateway(max_body_bytes=1000) as running:
        client = await RawClient.connect(running)
        await client.send(b"", length=10_000_000)
        reply = await client.read()
        await client.close()
    assert (reply.status, reply.json()["error"]["code"]) == (413, "request_too_large")


async def test_too_large_a_chunked_body_is_refused_while_it_comes() -> None:
    async with running_gateway(max_body_bytes=100_000) as running:
        client = await RawClient.connect(running)
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.writer.write(head.encode())
        for _ in range(20):
            client.writer.write(b"%x\r\n%b\r\n" % (10_000, b"x" * 10_000))
        reply = await client.read()
        await client.close()
    assert reply.status == 413


async def test_expect_continue_is_not_granted_to_what_is_too_large() -> None:
    async with running_gateway(max_body_bytes=1000) as running:
        client = await RawClient.connect(running)
        await client.send(length=5000, headers={"Expect": "100-continue"})
        assert (await client.read()).status == 413
        await client.close()
        client = await RawClient.connect(running)
        body = json.dumps(chat()).encode()
        await client.send(length=len(body), headers={"Expect": "100-continue"})
        assert (await client.read_head())[0] == 100
        client.writer.write(body)
        assert (await client.read()).status == 200
        await client.close()


async def test_body_in_many_pieces_and_compressed() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        body = json.dumps(chat("x" * 200_000)).encode()
        await client.send(body[:10], length=len(body))
        for start in range(10, len(body), 50_000):
            client.writer.write(body[start : start + 50_000])
            await client.writer.drain()
        assert (await client.read()).status == 200
        await client.close()
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                running.url + "/v1/chat/completions", json=chat("y" * 9999), compress="gzip"
            ) as reply,
        ):
            assert reply.status == 200
    assert len(body_of(running.stages.calls[0])["messages"][0]["content"]) == 200_000
    assert len(body_of(running.stages.calls[1])["messages"][0]["content"]) == 9999


async def test_body_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "read_body", functools.partial(read_body, timeout_s=0.05))
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.send(b"{", length=100)
        reply = await client.read()
        await client.close()
    assert (reply.status, reply.json()["error"]["code"]) == (408, "request_timeout")


async def test_decompressed_size_counts_too() -> None:
    async with (
        running_gateway(max_body_bytes=50_000) as running,
        aiohttp.ClientSession() as session,
        session.post(
            running.url + "/v1/chat/completions", json=chat("y" * 900_000), compress="gzip"
        ) as reply,
    ):
        assert reply.status == 413


async def test_broken_encodings_are_400() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(b"not gzip at all", headers={"Content-Encoding": "gzip"})
        assert reply.status == 400
        await client.close()
        client = await RawClient.connect(running)
        client.writer.write(b"NONSENSE\r\n\r\n")
        assert (await client.read_head())[0] == 400
        await client.close()


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_engines_4xx_comes_back_as_it_is(status: int) -> None:
    stages = FakeStages(
        make=lambda call: reply_with(call, b'{"error":"x"}', status=status, stream=False)
    )
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        for stream in (False, True):
            reply = await client.post(chat(stream=stream))
            assert (reply.status, reply.body) == (status, b'{"error":"x"}')
            assert reply.headers["content-type"] == "application/json"
        await client.close()


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (Overloaded("full", retry_after_s=2.2), 429, "3"),
        (Overloaded("full"), 429, "1"),
        (Unavailable("no node"), 503, None),
        (UpstreamFailed("it died"), 502, None),
    ],
    ids=["429 with a time", "429", "503", "502"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_before_the_first_byte_keep_their_status(
    error: Any, status: int, retry: str | None, stream: bool
) -> None:
    async def fail(_call: Any) -> None:
        raise error

    async with running_gateway(FakeStages(before=fail)) as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(stream=stream))
        await client.close()
    assert reply.status == status
    assert reply.headers.get("retry-after") == retry
    assert reply.json()["error"]["message"] == error.message


async def test_whole_answer_that_breaks_before_it_was_sent_is_502() -> None:
    broken = UpstreamFailed("it died")
    stages = FakeStages(make=lambda call: reply_with(call, b'{"half":', broken))
    async with running_gateway(stages) as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat())
        await client.close()
    assert reply.status == 502
    assert b"half" not in reply.body


async def test_long_answer_that_breaks_in_the_middle_is_cut_visibly() -> None:
    big = b"x" * (9 << 20)
    stages = FakeStages(make=lambda call: reply_with(call, big, UpstreamFailed("it died")))
    async with running_gateway(stages) as running, aiohttp.ClientSession() as session:
        async with session.post(running.url + "/v1/chat/completions", json=chat()) as reply:
            with pytest.raises((aiohttp.ClientPayloadError, ConnectionError)):
                await within(reply.read())
        stages.make = lambda call: reply_with(call, big, b"end")
        async with session.post(running.url + "/v1/chat/completions", json=chat()) as reply:
            assert await reply.read() == big + b"end"


async def test_bug_behind_the_gateway_is_a_500_without_details(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(_call: Any) -> None:
        raise KeyError("secret detail")

    async with running_gateway(FakeStages(before=fail)) as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat())
        await client.close()
    assert reply.status == 500
    assert b"secret" not in reply.body
    assert reply.json()["error"]["type"] == "api_error"
    assert "KeyError" in caplog.text


# --- connections --------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order() -> None:
    def make(call: Any) -> Any:
        return reply_with(call, json.dumps(body_of(call)["messages"]).encode())

    async with running_gateway(FakeStages(make=make)) as running:
        client = await RawClient.connect(running)
        for i in range(50):
            await client.send(json.dumps(chat(f"n{i}")).encode())
        for i in range(50):
            assert (await client.read()).json()[0]["content"] == f"n{i}"
        await client.close()


@pytest.mark.parametrize("name", ["a\tb", "x" * 129, "ünï"])
async def test_odd_request_ids_are_replaced(name: str) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        reply = await client.post(chat(), headers={"X-Request-Id": name})
        await client.close()
    assert reply.headers["x-request-id"].startswith("req-")


async def test_past_max_held_new_requests_get_429() -> None:
    release = asyncio.Event()

    async def wait(_call: Any) -> None:
        await release.wait()

    async with running_gateway(FakeStages(before=wait), max_held=3) as running:
        clients = [await RawClient.connect(running) for _ in range(5)]
        for client in clients[:3]:
            await client.send(json.dumps(chat()).encode())
        while running.server.held < 3:
            await within(asyncio.sleep(0.001))
        for client in clients[3:]:
            reply = await client.post(chat())
            assert (reply.status, reply.json()["error"]["code"]) == (429, "overloaded")
            assert reply.headers["retry-after"] == "1"
        release.set()
        for client in clients[:3]:
            assert (await client.read()).status == 200
        assert (await clients[4].post(chat())).status == 200
        for client in clients:
            await client.close()
    assert running.server.held == 0


# --- keys ---------------------------------------------------------------------------------------


@pytest.fixture
def keyed(tmp_path: Any) -> FakeControl:
    file = tmp_path / "keys.txt"
    file.write_text("sk-one\nsk-two\n")
    file.chmod(0o600)
    return FakeControl(make_fleet(api_keys_file=str(file)))


async def test_keys_guard_everything_but_health(keyed: FakeControl) -> None:
    async with running_gateway(control=keyed) as running:
        client = await RawClient.connect(running)
        for path in ("/v1/models", "/api/status", "/api/jobs", "/metrics", "/running"):
            reply = await client.get(path)
            assert (reply.status, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            good = await client.get(path, headers={"Authorization": "Bearer sk-one"})
            assert good.status == 200
        for path in ("/health", "/ready"):
            assert (await client.get(path)).status == 200
        refused = await client.post(chat(), headers={"Authorization": "Bearer sk-three"})
        assert refused.status == 401
        assert b"sk-three" not in refused.body
        assert (await client.post(chat(), headers={"x-api-key": "sk-two"})).status == 200
        await client.close()
    assert len(running.stages.calls) == 1


# --- joining ------------------------------------------------------------------------------------


def _conversation(*texts: str) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]


@pytest.mark.parametrize("stream", [False, True])
async def test_conversation_that_goes_on_stays_one_job(stream: bool) -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        first = await client.post(chat(stream=stream, messages=_conversation("q")))
        system = [{"role": "system", "content": "now another agent"}]
        again = await client.post(
            chat(stream=stream, messages=system + _conversation("q", "hello", "more"))
        )
        other = await client.post(chat(stream=stream, messages=_conversation("q", "hi", "more")))
        await client.close()
    jobs = [reply.headers["x-maestro-job"] for reply in (first, again, other)]
    assert jobs[0] == jobs[1] != jobs[2]
    assert running.stages.calls[1].stage.position == 1


async def test_streamed_answer_joins_as_soon_as_done_was_seen() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        second = await RawClient.connect(running)
        await client.send(json.dumps(chat(stream=True)).encode())
        _status, head = await client.read_head()
        while b"[DONE]" not in await client.read_chunk():
            pass
        reply = await second.post(
            chat(messages=[*_conversation("hi", "hello"), {"role": "user", "content": "m"}])
        )
        await client.close()
        await second.close()
    assert reply.headers["x-maestro-job"] == head["x-maestro-job"]


async def test_tool_call_id_joins_and_keys_keep_apart(keyed: FakeControl) -> None:
    call = {"id": "call_9", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    document = chat_document("", tool_calls=[call])
    stages = FakeStages(make=lambda c: reply_with(c, json.dumps(document).encode()))
    result = {"role": "tool", "tool_call_id": "call_9", "content": "42"}
    async with running_gateway(stages, keyed) as running:
        client = await RawClient.connect(running)
        jobs = []
        for key, messages in (
            ("sk-one", _conversation("q")),
            ("sk-one", [*_conversation("rewritten"), result]),
            ("sk-two", [*_conversation("rewritten"), result]),
        ):
            reply = await client.post(
                chat(messages=messages), headers={"Authorization": f"Bearer {key}"}
            )
            jobs.append(reply.headers["x-maestro-job"])
        await client.close()
    assert jobs[0] == jobs[1] != jobs[2]


async def test_usage_corrects_the_token_count() -> None:
    async with running_gateway() as running:
        client = await RawClient.connect(running)
        await client.post(chat("x" * 20))
        await client.post(chat("x" * 20))
        await client.close()
    before, after = (call.stage.prompt_tokens.full for call in running.stages.calls)
    assert (before, after) == (5, 10)
