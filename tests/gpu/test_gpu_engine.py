"""Sleep, wake, suspension, readings and elastic KV on a card."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from maestroctl.domain.engine import ResidencyTier
from maestroctl.live import gpu
from maestroctl.live.engine import kvcached
from maestroctl.live.engine.capabilities import Capability
from maestroctl.live.engine.managed import ManagedEngine
from tests.engine_support import EngineClient, Reply
from tests.gpu.conftest import KV_BYTES

pytestmark = [pytest.mark.gpu, pytest.mark.asyncio(loop_scope="module")]

PROMPT = "Tell me a story about a clever fox."
HOST, DISK = ResidencyTier.HOST, ResidencyTier.DISK


async def test_device_memory_of_the_engine_is_seen_by_process(cuda_engine: ManagedEngine) -> None:
    (device, *_) = gpu.read_gpus()
    readings = await cuda_engine.read_memory()
    assert readings.kv_pool_bytes == KV_BYTES
    assert 0 < readings.device_bytes < device.total_bytes
    if Capability.ELASTIC_KV not in cuda_engine.capabilities:
        assert readings.device_bytes > KV_BYTES
    assert readings.host_bytes > 0


@pytest.mark.parametrize("tier", [HOST, DISK])
async def test_sleep_frees_the_device_and_wake_gives_the_same_text(
    cuda_engine: ManagedEngine, tier: ResidencyTier
) -> None:
    client = EngineClient(cuda_engine.address)
    try:
        expected = await client.text(PROMPT, 60)
        before = await cuda_engine.read_memory()
        asleep = await cuda_engine.sleep(tier)
        assert before.device_bytes - asleep.device_bytes > KV_BYTES // 2
        assert asleep.device_bytes > 0  # the context stays, and stays booked
        awake = await cuda_engine.wake()
        assert abs(awake.device_bytes - before.device_bytes) < 0.1 * before.device_bytes
        assert await client.text(PROMPT, 60) == expected
    finally:
        await client.close()


async def test_suspension_in_mid_generation_does_not_change_the_text(
    cuda_engine: ManagedEngine,
) -> None:
    client = EngineClient(cuda_engine.address)
    try:
        expected = await client.text(PROMPT, 1200)
        reply = Reply()
        stream = asyncio.create_task(client.stream(PROMPT, 1200, reply=reply))
        await asyncio.wait_for(reply.first_token.wait(), 30)
        await cuda_engine.suspend()
        assert not stream.done()
        await cuda_engine.resume()
        assert (await asyncio.wait_for(stream, 60)).text == expected
    finally:
        await client.close()


async def test_kv_limit_is_lowered_and_raised_while_it_runs(cuda_engine: ManagedEngine) -> None:
    if Capability.ELASTIC_KV not in cuda_engine.capabilities:
        pytest.skip("kvcached is not installed in the engine's environment")
    (file,) = [path for path in Path("/dev/shm").iterdir() if path.name.startswith("maestroctl-")]
    client = EngineClient(cuda_engine.address)
    try:
        for limit in (KV_BYTES // 2, KV_BYTES):
            await cuda_engine.set_kv_limit(limit)
            seen = kvcached.read_kv_limit(file.name)
            assert seen is not None
            assert seen.limit_bytes == limit
            assert await client.text(PROMPT, 60)
    finally:
        await client.close()
