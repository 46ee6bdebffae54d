# ruff: noqa: ASYNC110 (polls a real process)
"""What every vLLM-like engine must do, on the stub and on real vLLM: one suite, so the stub
cannot drift from what it stands for.

The tests share one engine and leave it awake and idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from maestroctl.domain.engine import ResidencyTier
from maestroctl.errors import EngineError, EngineStartFailed
from maestroctl.live.engine import procfs
from maestroctl.live.engine.base import EngineState
from maestroctl.live.engine.capabilities import Capability
from maestroctl.live.engine.factory import make_engine, recover_engines
from maestroctl.live.engine.logs import LogLimits, rotate_log
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.orphans import find_orphans
from tests.conformance.engine.conftest import KV_BYTES, Subject
from tests.engine_support import Reply

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "Tell me a story about a clever fox."
DISK = ResidencyTier.DISK


async def _until_state(
    subject: Subject, wanted: Callable[[EngineState], bool], limit_s: float | None = None
) -> None:
    async with asyncio.timeout(limit_s or subject.slow):
        while not wanted(await subject.engine.read_state()):
            await asyncio.sleep(0.05)


async def _start_reply(
    subject: Subject, prompt: str, max_tokens: int, request_id: str | None = None
) -> tuple[Reply, asyncio.Task[Reply]]:
    """A stream that has begun to answer."""
    reply = Reply()
    task = asyncio.create_task(
        subject.client.stream(prompt, max_tokens, reply=reply, request_id=request_id)
    )
    await asyncio.wait_for(reply.first_token.wait(), subject.slow)
    return reply, task


async def test_started_engine_says_what_it_holds(subject: Subject) -> None:
    readings = await subject.engine.read_memory()
    assert readings.kv_pool_bytes == KV_BYTES
    assert readings.device_bytes > subject.least_freed_bytes
    state = await subject.engine.read_state()
    assert not state.is_sleeping
    assert not state.is_paused
    assert state.has_weights
    assert state.has_kv
    assert state.kv_pool_bytes == KV_BYTES


async def test_chat_answers_with_usage(subject: Subject) -> None:
    answer = await subject.client.chat(PROMPT, 12)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_same_prompt_gives_same_greedy_text(subject: Subject) -> None:
    assert await subject.client.text(PROMPT) == await subject.client.text(PROMPT)


async def test_stream_gives_the_same_text_usage_and_a_proper_end(subject: Subject) -> None:
    reply = await subject.client.stream(PROMPT)
    assert reply.text == await subject.client.text(PROMPT)
    assert reply.ended_with_done
    assert reply.finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage["completion_tokens"] == 24


async def test_request_is_aborted_by_its_name_and_alone(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT, 60)
    _, doomed = await _start_reply(subject, "Count to one thousand.", 1500, "doomed")
    _, other = await _start_reply(subject, PROMPT, 60, "other")
    await subject.engine.abort(["doomed"])
    ended = await asyncio.wait_for(doomed, subject.slow)
    assert ended.finish_reason == "abort"
    assert (await asyncio.wait_for(other, subject.slow)).text == expected
    await _until_state(subject, lambda state: state.num_running == 0)


async def test_aborting_nothing_aborts_nothing(subject: Subject) -> None:
    _, stream = await _start_reply(subject, PROMPT, 30)
    await subject.engine.abort([])
    assert (await asyncio.wait_for(stream, subject.slow)).finish_reason == "length"


async def test_client_that_closes_frees_the_engine(subject: Subject) -> None:
    _, stream = await _start_reply(subject, "Count to one thousand.", 1500)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    await _until_state(subject, lambda state: state.num_running == 0)


async def test_sleep_frees_memory_and_wake_gives_the_same_text(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT)
    before = await subject.engine.read_memory()
    asleep = await subject.engine.sleep(DISK)
    assert before.device_bytes - asleep.device_bytes >= subject.least_freed_bytes
    assert asleep.kv_pool_bytes == 0
    state = await subject.engine.read_state()
    assert state.is_sleeping
    assert (state.has_weights, state.has_kv) == (False, False)
    awake = await subject.engine.wake()
    assert awake.kv_pool_bytes == KV_BYTES
    assert await subject.client.text(PROMPT) == expected


async def test_sleeping_twice_and_waking_twice_change_nothing(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT)
    await subject.engine.sleep(DISK)
    await subject.engine.sleep(DISK)
    await subject.engine.wake()
    await subject.engine.wake()
    assert await subject.client.text(PROMPT) == expected


async def test_three_cycles_leave_text_and_memory_as_they_were(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT)
    await subject.engine.sleep(DISK)
    await subject.engine.wake()
    before = await subject.engine.read_memory()
    for _ in range(3):
        await subject.engine.sleep(DISK)
        await subject.engine.wake()
        assert await subject.client.text(PROMPT) == expected
    after = await subject.engine.read_memory()
    assert abs(after.device_bytes - before.device_bytes) <= 0.05 * before.device_bytes


async def test_busy_engine_refuses_to_sleep(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT, 80)
    _, stream = await _start_reply(subject, PROMPT, 80)
    with pytest.raises(EngineError, match="still hold"):
        await subject.engine.sleep(DISK)
    assert (await asyncio.wait_for(stream, subject.slow)).text == expected


async def test_suspension_in_mid_generation_does_not_change_the_text(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT, 120)
    before = await subject.engine.read_memory()
    reply, stream = await _start_reply(subject, PROMPT, 120)
    suspended = await subject.engine.suspend()
    assert before.device_bytes - suspended.device_bytes >= subject.least_freed_bytes
    chunks = reply.num_chunks
    await asyncio.wait({stream}, timeout=0.5)
    assert not stream.done()
    assert reply.num_chunks <= chunks + 1  # one may have been under way
    await subject.engine.resume()
    ended = await asyncio.wait_for(stream, subject.slow)
    assert ended.text == expected
    assert ended.finish_reason == "length"
    assert ended.usage is not None
    assert ended.usage["completion_tokens"] == 120


async def test_request_sent_while_asleep_is_answered_after_the_wake(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT)
    await subject.engine.sleep(DISK)
    waiting = asyncio.create_task(subject.client.text(PROMPT))
    await asyncio.wait({waiting}, timeout=0.3)
    assert not waiting.done()
    await subject.engine.wake()
    assert await asyncio.wait_for(waiting, subject.slow) == expected


async def test_log_is_rotated_under_a_running_engine(subject: Subject) -> None:
    log = Path(subject.engine.process.identity.log_path)
    assert log.stat().st_size > 0
    assert rotate_log(log, LogLimits(max_bytes=0, keep=1))
    assert log.with_name(log.name + ".1").stat().st_size > 0
    assert log.stat().st_size == 0
    await subject.client.text(PROMPT)  # its writer goes on


async def test_stop_leaves_nothing_and_an_orphan_is_adopted(subject: Subject) -> None:
    expected = await subject.client.text(PROMPT)
    state_dir = subject.make_order().state_dir
    await subject.engine.detach()
    recovery = await recover_engines(state_dir, lambda _: subject.make_order())
    (adopted,) = recovery.adopted
    assert isinstance(adopted, ManagedEngine)
    await subject.replace_engine(adopted)
    assert (await adopted.read_memory()).kv_pool_bytes == KV_BYTES
    assert await subject.client.text(PROMPT) == expected
    await adopted.sleep(DISK)
    await adopted.wake()
    token = adopted.process.identity.token
    await adopted.stop()
    assert not procfs.find_members(token)
    assert find_orphans(state_dir) == []


async def test_failed_start_names_the_reason(subject: Subject) -> None:
    order = subject.make_order()
    engine = await make_engine(order)
    with pytest.raises(EngineStartFailed) as caught:
        await engine.start(1)  # no KV cache is that small
    assert "last log lines" in caught.value.message
    assert isinstance(engine, ManagedEngine)
    assert not procfs.find_members(engine.process.identity.token)


async def test_capabilities_are_those_of_the_newest_version(subject: Subject) -> None:
    wanted = {Capability.SLEEP_DISK, Capability.SUSPEND, Capability.ABORT_REQUESTS}
    assert wanted <= subject.engine.capabilities.features


async def test_closed_engine_answers_nobody(subject: Subject) -> None:
    await subject.engine.stop()
    with pytest.raises(aiohttp.ClientError):
        await subject.client.text(PROMPT)
