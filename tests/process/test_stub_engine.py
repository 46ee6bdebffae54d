"""The stub engine as a process: sockets, signals, memory, every failure switch."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from maestroctl.testing.proc import pss_bytes
from maestroctl.testing.stub import StubHandle, launch_stub, processes_with, wait_until

MIB = 1024 * 1024
SLOW: dict[str, Any] = {"token_interval": 0.02}

Events = AsyncIterator[dict[str, Any] | str]


def ask(text: str, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **body}


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def stream(stub: StubHandle, text: str, **body: Any) -> Events:
    """Parsed events; the end marker as text."""
    url = "/v1/chat/completions"
    async with stub.session.post(url, json=ask(text, stream=True, **body)) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: "):
                data = line[6:].strip()
                yield "[DONE]" if data == b"[DONE]" else json.loads(data)


async def streamed_text(stub: StubHandle, text: str, **body: Any) -> tuple[str, str | None]:
    """Text and finish reason of a stream that must end with the marker."""
    events = [event async for event in stream(stub, text, **body)]
    assert events[-1] == "[DONE]"
    choices = [e["choices"][0] for e in events if isinstance(e, dict) and e["choices"]]
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    return content, choices[-1]["finish_reason"]


async def drain(events: Events, into: list[Any]) -> None:
    """Take events until there are no more."""
    async for event in events:
        into.append(event)  # noqa: PERF401  # what came before a failure counts


async def until_metric(stub: StubHandle, name: str, value: float, limit_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while await stub.metric(name) != value:
        assert time.monotonic() < deadline_s, f"{name} is not {value}"
        await asyncio.sleep(0.005)


# -- start, stop ---------------------------------------------------------------------------------


async def test_it_starts_fast_and_says_what_it_is(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, model="m", served_model_name=["a", "b"]) as stub:
        assert await stub.get("/version") == {"version": "0.32.0"}
        models = await stub.get("/v1/models")
        assert [model["id"] for model in models["data"]] == ["a", "b"]
        assert (await stub.chat("hi", model="b"))["model"] == "b"
        missing = await stub.chat("hi", model="m")
        assert missing["error"]["code"] == 404
        assert missing["error"]["param"] == "model"


async def test_it_serves_on_a_port(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, port=0) as stub:
        assert stub.base_url.startswith("http://127.0.0.1:")
        assert text_of(await stub.chat("ECHO: hi")) == "hi"


async def test_the_socket_file_outlives_sigterm_and_stops_the_next_start(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        stub.process.terminate()
        assert await asyncio.wait_for(stub.process.wait(), 5) == 0
        assert stub.socket_path.exists()
    with pytest.raises(RuntimeError, match="Address already in use"):
        async with launch_stub(tmp_path):
            pass


async def test_sigterm_leaves_open_requests_without_data_or_close(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, **SLOW) as stub:
        events = stream(stub, "TOKENS 500")
        for _ in range(3):
            await anext(events)
        stub.process.terminate()
        rest = asyncio.ensure_future(drain(events, []))
        # Whatever was under way may still come; then nothing does, and nothing closes.
        done, _ = await asyncio.wait([rest], timeout=0.4)
        assert not done
        assert stub.process.returncode is None
        rest.cancel()  # the last client leaves
        assert await asyncio.wait_for(stub.process.wait(), 5) == 0


async def test_sigterm_gives_up_on_open_requests_after_its_limit(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, drain_limit=0.1, **SLOW) as stub:
        events = stream(stub, "TOKENS 500")
        await anext(events)
        stub.process.terminate()
        assert await asyncio.wait_for(stub.process.wait(), 5) == 0
        with pytest.raises(aiohttp.ClientError):
            await drain(events, [])


async def test_ignoring_sigterm_leaves_only_sigkill(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, ignore_sigterm=True) as stub:
        stub.process.terminate()
        assert text_of(await stub.chat("ECHO: alive")) == "alive"
        stub.process.kill()
        assert await asyncio.wait_for(stub.process.wait(), 5) == -signal.SIGKILL


async def test_refusing_to_start_prints_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed to start"):
        async with launch_stub(tmp_path, refuse_start=True):
            pass


async def test_a_late_start_refuses_clients_until_it_listens(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, start_delay=0.3, ready=False) as stub:
        await wait_until(stub.socket_path.exists)
        with pytest.raises(aiohttp.ClientConnectorError):
            await stub.get("/version")
        await wait_until(lambda: "startup complete" in stub.log_text())
        assert "version" in await stub.get("/version")


async def test_a_context_larger_than_the_kv_pool_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="larger than the available"):
        async with launch_stub(tmp_path, kv_mib=1, kv_bytes_per_token=1024):
            pass


async def test_log_noise_is_written_at_start(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, log_noise_kib=300) as stub:
        assert len(stub.log_text()) > 300 * 1024


@pytest.mark.parametrize("kind", ["group", "session"])
async def test_a_grandchild_keeps_the_environment_and_outlives_the_engine(
    tmp_path: Path, kind: str
) -> None:
    async with launch_stub(tmp_path, fork_grandchild=kind) as stub:
        await wait_until(lambda: len(stub.survivors()) == 3)
        others = [pid for pid in stub.survivors() if pid != stub.pid]
        await wait_until(
            lambda: (
                sorted(os.getpgid(pid) == stub.pid for pid in others)
                == sorted([True, kind == "group"])
            )
        )
        stub.process.kill()
        await stub.process.wait()
        assert set(stub.survivors()) == set(others)
        token = stub.token
    await wait_until(lambda: processes_with(token) == [])


# -- answers -------------------------------------------------------------------------------------


async def test_the_text_is_the_same_streamed_whole_and_after_a_restart(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        async with launch_stub(tmp_path, name=name, model="m") as stub:
            texts.append(text_of(await stub.chat("tell me")))
            texts.append((await streamed_text(stub, "tell me"))[0])
    assert len(set(texts)) == 1


async def test_tokens_come_at_their_interval(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, token_interval=0.05) as stub:
        began_s = time.monotonic()
        times = [time.monotonic() - began_s async for _ in stream(stub, "TOKENS 6")]
        assert times[0] >= 0.05
        assert times[-1] >= 0.3
        assert times[-1] - times[0] >= 0.2


async def test_chunks_are_not_tokens_when_told_so(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, tokens_per_chunk=4) as stub:
        options = {"include_usage": True}
        events = [e async for e in stream(stub, "TOKENS 10", stream_options=options)]
        assert len(events) == 1 + 3 + 1 + 1 + 1  # role, text, finish, usage, marker
        usage = events[-2]
        assert isinstance(usage, dict)
        assert usage["usage"]["completion_tokens"] == 10


async def test_a_prompt_beyond_the_context_is_refused_like_vllm(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, max_model_len=64) as stub:
        error = (await stub.chat("x" * 4000))["error"]
        assert error["code"] == 400
        assert error["type"] == "BadRequestError"
        assert "maximum context length is 64 tokens" in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"model":"stub-model"}', b'{"messages":"hi"}', b'{"messages":[1]}']
)
async def test_bad_bodies_are_400(tmp_path: Path, body: bytes) -> None:
    async with (
        launch_stub(tmp_path) as stub,
        stub.session.post("/v1/chat/completions", data=body) as response,
    ):
        assert response.status == 400
        assert (await response.json())["error"]["code"] == 400


async def test_the_official_client_chats_streams_calls_tools_and_embeds(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, port=0, model="m", api_key="key-1") as stub:
        async with openai.AsyncOpenAI(base_url=stub.base_url + "/v1", api_key="key-1") as client:
            await official_client_calls(client)
        async with openai.AsyncOpenAI(base_url=stub.base_url + "/v1", api_key="no") as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        assert await stub.get("/is_paused") == {"is_paused": False}  # needs no key


async def official_client_calls(client: openai.AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": 'CALL f {"a": 1} ECHO: two words'}]
    whole = await client.chat.completions.create(model="m", messages=messages)
    assert whole.choices[0].message.content == "two words"
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    called = await client.chat.completions.create(model="m", messages=messages, tools=tools)
    calls: Any = called.choices[0].message.tool_calls
    assert (calls[0].function.name, json.loads(calls[0].function.arguments)) == ("f", {"a": 1})
    pieces = []
    async for chunk in await client.chat.completions.create(
        model="m", messages=messages, stream=True, stream_options={"include_usage": True}
    ):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == "two words"
    completion = await client.completions.create(model="m", prompt="ECHO: abc")
    assert completion.choices[0].text == "abc"
    vectors = await client.embeddings.create(model="m", input=["x", "x", "y"])
    assert vectors.data[0].embedding == vectors.data[1].embedding
    assert vectors.data[0].embedding != vectors.data[2].embedding
    response = await client.responses.create(model="m", input="ECHO: hello there")
    assert response.output_text == "hello there"
    async with client.responses.stream(model="m", input="ECHO: hello there") as events:
        async for _ in events:
            pass
        assert (await events.get_final_response()).output_text == "hello there"


async def test_tokenize_agrees_with_usage(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        body = ask("how many tokens is this?")
        counted = await stub.post("/tokenize", body)
        answer = await stub.post("/v1/chat/completions", body)
        assert counted["count"] == answer["usage"]["prompt_tokens"]
        assert counted["max_model_len"] == 8192
        prompt = await stub.post("/tokenize", {"prompt": "abcdefgh"})
        assert (prompt["count"], len(prompt["tokens"])) == (2, 2)


async def test_what_a_proxy_sent_can_be_read_back(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        await stub.chat("hi", unknown_field={"x": [1]})
        seen = (await stub.get("/stub/requests"))["requests"][-1]
        assert json.loads(seen["body"])["unknown_field"] == {"x": [1]}
        assert seen["headers"]["content-type"] == "application/json"


# -- leaving and aborting ------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_client_that_closes_frees_its_slot_at_once(tmp_path: Path, streaming: bool) -> None:
    async with launch_stub(tmp_path, token_interval=0.05, max_num_seqs=1) as stub:
        body = ask("TOKENS 1000", stream=streaming)
        request = asyncio.create_task(stub.session.post("/v1/chat/completions", json=body))
        await until_metric(stub, "num_requests_running", 1)
        if streaming:
            (await request).close()
        else:
            request.cancel()
        began_s = time.monotonic()
        await until_metric(stub, "num_requests_running", 0)
        assert time.monotonic() - began_s < 0.5
        assert text_of(await stub.chat("ECHO: next")) == "next"


async def test_those_without_a_slot_wait_and_are_counted(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, token_interval=0.01, max_num_seqs=1) as stub:
        first = asyncio.create_task(stub.chat("TOKENS 40"))
        await until_metric(stub, "num_requests_running", 1)
        second = asyncio.create_task(stub.chat("TOKENS 1"))
        await until_metric(stub, "num_requests_waiting", 1)
        assert await stub.get("/load") == {"server_load": 2}
        assert (await first)["usage"]["completion_tokens"] == 40
        assert (await second)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_aborted_request_answers_200_with_reason_abort(
    tmp_path: Path, streaming: bool
) -> None:
    async with launch_stub(tmp_path, **SLOW) as stub:
        headers = {"X-Request-Id": "r1"}
        body = ask("TOKENS 1000", stream=streaming)
        url = "/v1/chat/completions"
        request = asyncio.create_task(stub.session.post(url, json=body, headers=headers))
        await until_metric(stub, "num_requests_running", 1)
        # vLLM knows a request by the id the client sees; the bare header value names nothing.
        await stub.post("/abort_requests", {"request_ids": ["r1", "other"]})
        assert await stub.metric("num_requests_running") == 1
        await stub.post("/abort_requests", {"request_ids": ["chatcmpl-r1"]})
        async with await request as response:
            text = await response.text()
            assert response.status == 200
        assert '"finish_reason":"abort"' in text
        assert text.endswith("data: [DONE]\n\n") == streaming
        assert '"id":"chatcmpl-r1"' in text


async def test_aborting_an_empty_list_aborts_everything(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, max_num_seqs=1, **SLOW) as stub:
        asks = [asyncio.create_task(stub.chat("TOKENS 1000")) for _ in range(2)]
        await until_metric(stub, "num_requests_waiting", 1)
        assert (await stub.post("/abort_requests", {"request_ids": []}))["aborted"] == 2
        answers = await asyncio.gather(*asks)
        assert [a["choices"][0]["finish_reason"] for a in answers] == ["abort", "abort"]


# -- pausing, sleeping ---------------------------------------------------------------------------


async def test_a_pause_freezes_and_a_resume_goes_on_with_the_same_text(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, **SLOW) as stub:
        undisturbed = (await streamed_text(stub, "TOKENS 20"))[0]
        disturbed = asyncio.create_task(streamed_text(stub, "TOKENS 20"))
        await until_metric(stub, "num_requests_running", 1)
        assert await stub.post("/pause?mode=keep&clear_cache=false") == {"status": "paused"}
        produced = await stub.metric("generation_tokens_total")
        late = asyncio.create_task(stub.chat("ECHO: late"))
        await until_metric(stub, "num_requests_waiting", 1)
        assert await stub.get("/is_paused") == {"is_paused": True}
        assert await stub.metric("generation_tokens_total") == produced
        await stub.post("/resume")
        assert await disturbed == (undisturbed, "stop")
        assert text_of(await late) == "late"


async def test_memory_is_real_and_goes_when_asleep_in_mid_generation(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, weights_mib=48, kv_mib=16, **SLOW) as stub:
        undisturbed = (await streamed_text(stub, "TOKENS 25"))[0]
        awake = stub.pss_bytes()
        request = asyncio.create_task(streamed_text(stub, "TOKENS 25"))
        await until_metric(stub, "num_requests_running", 1)
        await stub.post("/pause?mode=keep&clear_cache=false")
        await stub.post("/reset_prefix_cache?reset_running_requests=true")
        assert await stub.metric("num_preemptions_total") == 1
        dropped = (await stub.post("/collective_rpc", {"method": "maestro_drop"}))["results"][0]
        assert dropped == {
            "ok": True, "weights": False, "kv": False, "weights_bytes": 0, "kv_bytes": 0,
        }  # fmt: skip
        assert stub.pss_bytes() < awake - 60 * MIB
        restored = await stub.post("/collective_rpc", {"method": "maestro_restore"})
        assert restored["results"][0]["weights_bytes"] == 48 * MIB
        assert abs(stub.pss_bytes() - awake) < 4 * MIB
        await stub.post("/resume")
        assert await request == (undisturbed, "stop")


async def test_sleep_and_wake_of_vllm(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, weights_mib=32, kv_mib=16, wake_delay=0.1, **SLOW) as stub:
        awake = stub.pss_bytes()
        running = asyncio.create_task(stub.chat("TOKENS 1000"))
        await until_metric(stub, "num_requests_running", 1)
        assert await stub.post("/sleep?level=1") == {"status": "sleeping", "level": 1}
        assert (await running)["choices"][0]["finish_reason"] == "abort"
        assert await stub.get("/is_sleeping") == {"is_sleeping": True}
        assert stub.pss_bytes() < awake - 44 * MIB
        waiting = asyncio.create_task(stub.chat("ECHO: woken"))
        await until_metric(stub, "num_requests_waiting", 1)
        partly = await stub.post("/wake_up?tags=weights")
        assert partly == {"status": "sleeping", "tags": ["weights"]}
        assert (await stub.post("/wake_up?tags=kv_cache"))["status"] == "awake"
        assert text_of(await waiting) == "woken"
        assert await stub.get("/is_sleeping") == {"is_sleeping": False}


async def test_level_two_answers_noise_until_weights_are_reloaded(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        await stub.post("/sleep?level=2")
        await stub.post("/wake_up")
        assert text_of(await stub.chat("ECHO: hello")) != "hello"
        await stub.post("/collective_rpc", {"method": "reload_weights"})
        assert text_of(await stub.chat("ECHO: hello")) == "hello"


async def test_dropping_while_requests_run_is_refused(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, **SLOW) as stub:
        request = asyncio.create_task(stub.chat("TOKENS 20"))
        await until_metric(stub, "num_requests_running", 1)
        answer = await stub.post("/collective_rpc", {"method": "maestro_drop"})
        assert answer["results"][0]["ok"] is False
        assert (await request)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("streaming", [True, False])
async def test_generating_without_weights_kills_the_engine(tmp_path: Path, streaming: bool) -> None:
    async with launch_stub(tmp_path) as stub:
        await stub.post("/collective_rpc", {"method": "maestro_drop"})
        with pytest.raises(aiohttp.ClientError):
            await stub.chat("hi", stream=streaming)
        assert await asyncio.wait_for(stub.process.wait(), 5) == 3
        assert "EngineCore died" in stub.log_text()


async def test_releasing_kv_without_a_pause_kills_the_engine(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        assert (await stub.post("/release_kv_cache_memory"))["error"]["code"] == 500
        assert await asyncio.wait_for(stub.process.wait(), 5) == 3


async def test_development_endpoints_need_development_mode(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, env={"VLLM_SERVER_DEV_MODE": "0"}) as stub:
        assert await stub.post("/sleep") == {"detail": "Not Found"}
        assert await stub.get("/is_sleeping") == {"detail": "Not Found"}
        assert await stub.post("/health") == {"detail": "Method Not Allowed"}


# -- failure switches ----------------------------------------------------------------------------


async def test_the_process_dies_at_its_token(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, exit_at_token=4) as stub:
        events: list[Any] = []
        with pytest.raises(aiohttp.ClientError):
            await drain(stream(stub, "TOKENS 10"), events)
        assert len([e for e in events if e["choices"][0]["delta"]["content"]]) == 3
        assert await asyncio.wait_for(stub.process.wait(), 5) == 3


async def test_a_cut_stream_has_no_end(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, cut_stream_at=3) as stub:
        events: list[Any] = []
        with pytest.raises(aiohttp.ClientPayloadError):
            await drain(stream(stub, "TOKENS 10"), events)
        assert len(events) == 4
        with pytest.raises(aiohttp.ClientPayloadError):
            await stub.chat("TOKENS 10")
        await until_metric(stub, "num_requests_running", 0)
        assert (await stub.chat("TOKENS 2"))["usage"]["completion_tokens"] == 2


async def test_a_stalled_stream_stays_open_and_silent(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, stall_at_token=2) as stub:
        events = stream(stub, "TOKENS 10")
        for _ in range(3):
            await anext(events)
        following = asyncio.ensure_future(anext(events))
        done, _ = await asyncio.wait([following], timeout=0.2)
        assert not done
        assert await stub.metric("num_requests_running") == 1
        following.cancel()


async def test_failing_before_the_first_byte_ends_after_its_count(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, fail_before_first_byte=2) as stub:
        answers = [await stub.chat("hi", stream=False) for _ in range(3)]
        assert ["error" in answer for answer in answers] == [True, True, False]


async def test_switches_can_be_set_while_it_runs(tmp_path: Path) -> None:
    async with launch_stub(tmp_path) as stub:
        assert "choices" in await stub.chat("hi")
        await stub.set_faults(fail_before_first_byte=-1)
        assert "error" in await stub.chat("hi")
        await stub.set_faults(fail_before_first_byte=0)
        assert "choices" in await stub.chat("hi")
        assert (await stub.set_faults(nope=1))["error"]["code"] == 400


async def test_lying_about_sleep_frees_nothing(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, weights_mib=32, lie_about_sleep=True) as stub:
        awake = stub.pss_bytes()
        await stub.post("/sleep")
        assert await stub.get("/is_sleeping") == {"is_sleeping": True}
        assert stub.pss_bytes() > awake - 2 * MIB
        await stub.post("/wake_up")
        assert text_of(await stub.chat("ECHO: hi")) == "hi"
        assert abs(stub.pss_bytes() - awake) < 4 * MIB


async def test_memory_returned_late_is_seen_later(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, weights_mib=32, return_memory_late=0.3) as stub:
        awake = stub.pss_bytes()
        await stub.post("/sleep")
        assert stub.pss_bytes() > awake - 2 * MIB
        await wait_until(lambda: pss_bytes(stub.pid) < awake - 30 * MIB)
        await stub.post("/wake_up")
        assert abs(stub.pss_bytes() - awake) < 4 * MIB


@pytest.mark.parametrize(("switch", "tries"), [("once", 1), ("always", 3)])
async def test_a_failed_wake_leaves_it_asleep(tmp_path: Path, switch: str, tries: int) -> None:
    async with launch_stub(tmp_path, weights_mib=16, fail_wake=switch) as stub:
        await stub.post("/sleep")
        for _ in range(tries):
            assert (await stub.post("/wake_up"))["error"]["code"] == 500
            assert await stub.get("/is_sleeping") == {"is_sleeping": True}
        last = await stub.post("/wake_up")
        assert ("error" in last) == (switch == "always")


async def test_a_failed_restore_is_reported_by_the_worker(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, fail_wake="once") as stub:
        await stub.post("/pause?mode=keep")
        await stub.post("/collective_rpc", {"method": "maestro_drop"})
        answer = await stub.post("/collective_rpc", {"method": "maestro_restore"})
        assert answer["results"][0]["ok"] is False
        answer = await stub.post("/collective_rpc", {"method": "maestro_restore"})
        assert answer["results"][0]["ok"] is True
        unknown = await stub.post("/collective_rpc", {"method": "nope"})
        assert unknown["error"]["code"] == 500


async def test_errors_can_be_plain_text(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, plain_errors=True, max_model_len=16) as stub:
        body = ask("x" * 1000)
        async with stub.session.post("/v1/chat/completions", json=body) as response:
            assert response.status == 500
            assert response.content_type == "text/plain"
            assert "maximum context length" in await response.text()


# -- load ----------------------------------------------------------------------------------------


async def test_three_hundred_streams_are_served_side_by_side(tmp_path: Path) -> None:
    async with launch_stub(tmp_path, token_interval=0.05) as stub:
        texts = await asyncio.gather(*(streamed_text(stub, "TOKENS 8") for _ in range(300)))
        assert len(set(texts)) == 1
        await until_metric(stub, "num_requests_running", 0)
        # Connections that stay open are the client's keep-alive; none is the engine's to keep.
        await stub.session.close()
        descriptors = Path(f"/proc/{stub.pid}/fd")
        await wait_until(lambda: len(list(descriptors.iterdir())) < 20)
