"""Engines of other makers: by their own command line, or run by somebody else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from maestroctl.domain.engine import ResidencyTier
from maestroctl.domain.ids import EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, HttpAction, ModelSpec
from maestroctl.errors import (
    CapabilityMissing,
    ConfigError,
    EngineError,
    EngineStartFailed,
    ReadyTimeout,
)
from maestroctl.live.engine import command, procfs
from maestroctl.live.engine.base import Engine, EngineOrder
from maestroctl.live.engine.capabilities import Capability
from maestroctl.live.engine.factory import make_engine
from maestroctl.live.engine.managed import ManagedEngine
from tests.engine_support import STUB_MODULE, EngineClient, Reply, kill_leftovers, start_stub

_STUB = (sys.executable, "-m", STUB_MODULE, "--model", "stub")
_SLEEP = HttpAction("POST", "/sleep?level=2&mode=wait")
_WAKE = HttpAction("POST", "/wake_up")


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    kill_leftovers(tmp_path)


def _order(
    folder: Path, kind: EngineKind = EngineKind.COMMAND, limit_s: float = 15.0, **model: Any
) -> EngineOrder:
    return EngineOrder(
        engine_id=EngineId("other@here"),
        generation=1,
        model=ModelSpec(ModelName("stub"), **model),
        engine=EngineSpec("default", kind, start_timeout_s=limit_s, stop_grace_s=2),
        state_dir=folder,
        memory_return_s=1.0,
    )


@pytest.mark.parametrize("where", [("--port", "${PORT}"), ("--uds", "${SOCKET}")])
async def test_server_is_started_where_its_command_says(
    tmp_path: Path, where: tuple[str, str]
) -> None:
    engine = await make_engine(_order(tmp_path, command=(*_STUB, *where)))
    await engine.start(0)
    client = EngineClient(engine.address)
    assert await client.text("hello")
    await client.close()
    assert isinstance(engine, ManagedEngine)
    await engine.stop()
    assert not procfs.find_members(engine.process.identity.token)


async def test_command_that_does_not_say_where_it_listens_is_refused(tmp_path: Path) -> None:
    engine = await make_engine(_order(tmp_path, command=_STUB))
    with pytest.raises(ConfigError, match="does not say where it listens"):
        await engine.start(0)


async def test_missing_program_is_named(tmp_path: Path) -> None:
    engine = await make_engine(_order(tmp_path, command=("/no/llama-server", "--port", "${PORT}")))
    with pytest.raises(EngineStartFailed, match="/no/llama-server"):
        await engine.start(0)


async def test_answers_of_a_strangers_server_on_the_port_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = await make_engine(_order(tmp_path / "a", command=(*_STUB, "--port", "${PORT}")))
    (tmp_path / "a").mkdir()
    await stranger.start(0)
    port = int(stranger.address.base_url.rsplit(":", 1)[1])
    monkeypatch.setattr(command, "pick_free_port", lambda: port)
    idle = (sys.executable, "-c", "import time; time.sleep(60)", "${PORT}")
    engine = await make_engine(_order(tmp_path, limit_s=0.7, command=idle))
    with pytest.raises(ReadyTimeout):
        await engine.start(0)
    await stranger.stop()


async def test_named_requests_put_a_server_to_sleep_and_wake_it(tmp_path: Path) -> None:
    argv = (*_STUB, "--uds", "${SOCKET}", "--weights-mib", "64")
    order = _order(tmp_path, command=argv, sleep_action=_SLEEP, wake_action=_WAKE)
    engine = await make_engine(order)
    assert Capability.SLEEP_DISK in engine.capabilities
    before = await engine.start(0)
    asleep = await engine.sleep(ResidencyTier.DISK)
    assert before.device_bytes - asleep.device_bytes > 60 << 20
    await engine.wake()
    assert not (await engine.read_state()).is_sleeping
    await engine.stop()


async def test_sleep_request_that_frees_nothing_is_caught(tmp_path: Path) -> None:
    argv = (*_STUB, "--uds", "${SOCKET}", "--weights-mib", "64", "--lie-about-sleep")
    order = _order(tmp_path, command=argv, sleep_action=_SLEEP, wake_action=_WAKE)
    engine = await make_engine(order)
    await engine.start(0)
    with pytest.raises(EngineError, match="memory went from"):
        await engine.sleep(ResidencyTier.DISK)
    await engine.stop()


async def test_server_without_sleep_requests_cannot_sleep(tmp_path: Path) -> None:
    engine = await make_engine(_order(tmp_path, command=(*_STUB, "--port", "${PORT}")))
    assert Capability.SLEEP_DISK not in engine.capabilities
    await engine.start(0)
    for attempt in (engine.sleep(ResidencyTier.DISK), engine.suspend(), engine.set_kv_limit(1)):
        with pytest.raises(CapabilityMissing):
            await attempt
    await engine.stop()


@pytest.fixture
async def elsewhere(tmp_path: Path) -> AsyncIterator[Engine]:
    """A vLLM that somebody else runs, as far as the tests below know."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    engine = await start_stub(folder, "--token-interval", "0.01")
    yield engine
    await engine.stop()


def _url(engine: Engine) -> str:
    return f"unix:{engine.address.socket_path}"


async def test_attached_engine_is_used_and_never_stopped(tmp_path: Path, elsewhere: Engine) -> None:
    order = _order(tmp_path, EngineKind.VLLM_CPU, url=_url(elsewhere))
    engine = await make_engine(order)
    readings = await engine.start(1 << 20)
    assert not engine.is_managed
    assert readings.device_bytes == 0
    client = EngineClient(engine.address)
    reply = Reply()
    stream = asyncio.create_task(client.stream("go", 500, reply=reply, request_id="mine"))
    await asyncio.wait_for(reply.first_token.wait(), 5)
    assert (await engine.read_state()).num_running == 1
    await engine.abort(["mine"])
    assert (await asyncio.wait_for(stream, 5)).finish_reason == "abort"
    with pytest.raises(CapabilityMissing, match="somebody else"):
        await engine.sleep(ResidencyTier.DISK)
    await engine.stop()
    assert engine.exited.done()
    assert await client.text("still there")
    await client.close()


async def test_endpoint_that_serves_other_models_is_refused(
    tmp_path: Path, elsewhere: Engine
) -> None:
    order = _order(tmp_path, EngineKind.ENDPOINT, url=_url(elsewhere), upstream_name="absent")
    engine = await make_engine(order)
    with pytest.raises(EngineError, match="does not serve 'absent'") as caught:
        await engine.start(0)
    assert "upstream_name" in (caught.value.hint or "")
    await engine.detach()


async def test_unreachable_endpoint_times_out_with_the_reason(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{command.pick_free_port()}/v1"
    engine = await make_engine(_order(tmp_path, EngineKind.ENDPOINT, limit_s=0.3, url=url))
    with pytest.raises(ReadyTimeout, match="did not list its models"):
        await engine.start(0)
    await engine.detach()


async def test_endpoint_key_comes_from_a_private_file(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    argv = (*_STUB, "--port", "${PORT}", "--api-key", "s3cret")
    key = tmp_path / "key"
    key.write_text("s3cret\n")
    key.chmod(0o600)
    server = await make_engine(_order(folder, command=argv, api_key_file=str(key)))
    await server.start(0)
    url = server.address.base_url + "/v1"
    engine = await make_engine(
        _order(tmp_path, EngineKind.ENDPOINT, url=url, api_key_file=str(key))
    )
    await engine.start(0)
    await engine.probe()
    assert "s3cret" not in repr(engine.address)
    await engine.detach()
    without = await make_engine(_order(tmp_path, EngineKind.ENDPOINT, url=url))
    with pytest.raises(EngineError, match="refuses our key"):
        await without.start(0)
    await without.detach()
    os.chmod(key, 0o644)
    with pytest.raises(ConfigError, match="may be read by others"):
        await make_engine(_order(tmp_path, EngineKind.ENDPOINT, url=url, api_key_file=str(key)))
    await server.stop()


@pytest.mark.parametrize("url", [None, "", "ftp://x", "127.0.0.1:80", "http://"])
async def test_url_that_is_none_is_refused(tmp_path: Path, url: str | None) -> None:
    with pytest.raises(ConfigError, match="url"):
        await make_engine(_order(tmp_path, EngineKind.ENDPOINT, url=url))
