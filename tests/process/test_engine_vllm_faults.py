# ruff: noqa: ASYNC110 (tests poll real processes)
"""The vLLM adapter against a stub that breaks every promise a server can break."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.domain.engine import ResidencyTier
from maestroctl.domain.llm import EngineKind
from maestroctl.errors import (
    CapabilityMissing,
    ConfigError,
    EngineError,
    EngineExited,
    EngineStartFailed,
    ReadyTimeout,
)
from maestroctl.live.engine import procfs
from maestroctl.live.engine.capabilities import Capability
from maestroctl.live.engine.factory import make_engine, recover_engines
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.orphans import find_orphans
from tests.engine_support import (
    MIB,
    EngineClient,
    Reply,
    kill_leftovers,
    start_stub,
    stub_order,
)

DISK = ResidencyTier.DISK


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    kill_leftovers(tmp_path)


def _token(engine: object) -> str:
    assert isinstance(engine, ManagedEngine)
    return engine.process.identity.token


async def test_start_timeout_is_named_in_the_error_and_nothing_is_left(tmp_path: Path) -> None:
    order = stub_order(tmp_path, "--start-delay", "60", start_timeout_s=0.5)
    engine = await make_engine(order)
    with pytest.raises(ReadyTimeout) as caught:
        await engine.start(MIB)
    assert "engine.default.start_timeout" in (caught.value.hint or "")
    assert not procfs.find_members(_token(engine))
    assert find_orphans(tmp_path) == []


async def test_refused_start_carries_the_engines_own_words(tmp_path: Path) -> None:
    engine = await make_engine(stub_order(tmp_path, "--refuse-start"))
    with pytest.raises(EngineStartFailed) as caught:
        await engine.start(MIB)
    assert "last log lines" in caught.value.message
    assert engine.exited.done()


async def test_engine_that_is_healthy_but_generates_nothing_is_not_ready(tmp_path: Path) -> None:
    engine = await make_engine(stub_order(tmp_path, "--fail-before-first-byte"))
    with pytest.raises(EngineStartFailed, match="generates nothing"):
        await engine.start(MIB)
    assert not procfs.find_members(_token(engine))


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    engine = await make_engine(stub_order(tmp_path, "--start-delay", "60"))
    starting = asyncio.create_task(engine.start(MIB))
    async with asyncio.timeout(10):
        while not find_orphans(tmp_path):
            await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not procfs.find_members(_token(engine))


async def test_sleep_that_frees_nothing_is_caught(tmp_path: Path) -> None:
    flags = ("--weights-mib", "64", "--lie-about-sleep")
    engine = await start_stub(tmp_path, *flags, memory_return_s=0.5)
    with pytest.raises(EngineError, match=r"memory went from|still holds"):
        await engine.sleep(DISK)
    await engine.stop()


async def test_memory_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    flags = ("--weights-mib", "64", "--return-memory-late", "0.7")
    engine = await start_stub(tmp_path, *flags, memory_return_s=10)
    before = await engine.read_memory()
    after = await engine.sleep(DISK)
    assert before.device_bytes - after.device_bytes > 60 * MIB
    await engine.stop()


async def test_wake_that_fails_once_works_the_second_time(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, "--weights-mib", "16", "--fail-wake", "once")
    await engine.sleep(DISK)
    with pytest.raises(EngineError):
        await engine.wake()
    readings = await engine.wake()
    assert readings.kv_pool_bytes == 64 * MIB
    await engine.stop()


async def test_wake_that_always_fails_never_looks_awake(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, "--weights-mib", "16", "--fail-wake", "always")
    await engine.sleep(DISK)
    for _ in range(2):
        with pytest.raises(EngineError):
            await engine.wake()
    assert (await engine.read_state()).is_sleeping
    await engine.stop()


async def test_busy_engine_refuses_to_sleep_and_goes_on(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, "--token-interval", "0.02")
    client = EngineClient(engine.address)
    try:
        undisturbed = await client.text("count", 30)
        reply = Reply()
        streaming = asyncio.create_task(client.stream("count", 30, reply=reply))
        await asyncio.wait_for(reply.first_token.wait(), 10)
        with pytest.raises(EngineError, match="still hold"):
            await engine.sleep(DISK)
        assert (await asyncio.wait_for(streaming, 10)).text == undisturbed
    finally:
        await client.close()
        await engine.stop()


async def test_request_that_races_with_sleep_is_answered_after_the_wake(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, "--weights-mib", "16")
    client = EngineClient(engine.address)
    try:
        expected = await client.text("late")
        await engine.sleep(DISK)
        waiting = asyncio.create_task(client.text("late"))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        await engine.wake()
        assert await asyncio.wait_for(waiting, 10) == expected
    finally:
        await client.close()
        await engine.stop()


async def test_engine_that_dies_while_asked_to_sleep_is_reported(tmp_path: Path) -> None:
    flags = ("--weights-mib", "64", "--return-memory-late", "60")
    engine = await start_stub(tmp_path, *flags, memory_return_s=30)
    assert isinstance(engine, ManagedEngine)
    sleeping = asyncio.create_task(engine.sleep(DISK))
    async with asyncio.timeout(10):
        while not (await engine.read_state()).is_sleeping:
            await asyncio.sleep(0.02)
    os.kill(engine.process.identity.pid, signal.SIGKILL)
    with pytest.raises(EngineExited):
        await sleeping


async def test_exit_in_the_middle_of_serving_resolves_exited(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, "--token-interval", "0.01", "--exit-at-token", "5")
    client = EngineClient(engine.address)
    with pytest.raises(Exception, match=r"(?i)disconnect|payload|closed|connection"):
        await client.stream("x", 20)
    await asyncio.wait_for(engine.exited, 10)
    await client.close()
    await engine.stop()


async def test_older_version_loses_the_rung_and_not_the_engine(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path, version="0.24.0")
    assert Capability.SUSPEND not in engine.capabilities
    with pytest.raises(CapabilityMissing, match="suspend"):
        await engine.suspend()
    await engine.abort(["x"])
    await engine.stop()


async def test_unsupported_version_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="oldest supported"):
        await make_engine(stub_order(tmp_path, version="0.9.1"))


async def test_missing_environment_is_a_clear_error(tmp_path: Path) -> None:
    order = stub_order(tmp_path)
    spec = replace(order.engine, entrypoint=None, python="/nonexistent/bin/python")
    with pytest.raises(EngineError, match="/nonexistent/bin/python") as caught:
        await make_engine(replace(order, engine=spec))
    assert "install.sh" in (caught.value.hint or "")


async def test_plain_text_errors_are_quoted(tmp_path: Path) -> None:
    flags = ("--plain-errors", "--fail-before-first-byte")
    engine = await make_engine(stub_order(tmp_path, *flags))
    with pytest.raises(EngineStartFailed, match="500"):
        await engine.start(MIB)


async def test_healthy_engine_is_adopted_by_the_next_daemon(tmp_path: Path) -> None:
    order = stub_order(tmp_path, "--weights-mib", "16")
    engine = await make_engine(order)
    await engine.start(8 * MIB)
    await engine.sleep(DISK)
    await engine.detach()
    recovery = await recover_engines(tmp_path, lambda _: order)
    (adopted,) = recovery.adopted
    assert (await adopted.read_state()).is_sleeping
    assert (await adopted.wake()).kv_pool_bytes == 8 * MIB
    await adopted.stop()
    assert not procfs.find_members(_token(adopted))


async def test_adopted_engine_that_was_left_paused_goes_on(tmp_path: Path) -> None:
    order = stub_order(tmp_path)
    engine = await make_engine(order)
    await engine.start(MIB)
    client = EngineClient(engine.address)
    await client.post("/pause?mode=keep&clear_cache=false", {})
    await engine.detach()
    (adopted,) = (await recover_engines(tmp_path, lambda _: order)).adopted
    assert await asyncio.wait_for(client.text("x"), 5)
    await client.close()
    await adopted.stop()


async def test_engine_of_another_configuration_is_ended_not_adopted(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path)
    await engine.detach()
    other = stub_order(tmp_path, max_batch=3)
    recovery = await recover_engines(tmp_path, lambda _: other)
    assert recovery.adopted == ()
    assert "another configuration" in recovery.ended[0][1]
    assert not procfs.find_members(_token(engine))


async def test_engine_that_is_no_longer_configured_is_ended(tmp_path: Path) -> None:
    engine = await start_stub(tmp_path)
    await engine.detach()
    recovery = await recover_engines(tmp_path, lambda _: None)
    assert "no longer configured" in recovery.ended[0][1]
    assert not procfs.find_members(_token(engine))


async def test_unhealthy_orphan_is_ended(tmp_path: Path) -> None:
    order = stub_order(tmp_path, "--ignore-sigterm")
    engine = await make_engine(order)
    await engine.start(MIB)
    await engine.detach()
    assert isinstance(engine, ManagedEngine)
    os.unlink(engine.process.identity.socket_path)
    recovery = await recover_engines(tmp_path, lambda _: order, grace_s=0.3)
    assert recovery.adopted == ()
    assert not procfs.find_members(_token(engine))


async def test_cuda_adapter_sleeps_and_wakes_by_vllms_own_endpoints(tmp_path: Path) -> None:
    # The stub has no device, so NVML's part is played by an expectation of 0 bytes.
    engine = await start_stub(tmp_path, "--weights-mib", "32", kind=EngineKind.VLLM)
    client = EngineClient(engine.address)
    try:
        expected = await client.text("cuda")
        for tier in (ResidencyTier.HOST, ResidencyTier.DISK):
            await engine.sleep(tier)
            assert (await engine.read_state()).is_sleeping
            await engine.wake()
            assert not (await engine.read_state()).is_sleeping
            assert await client.text("cuda") == expected
    finally:
        await client.close()
        await engine.stop()
