"""A refit in a running coordinator: swapped in unseen, and harmless when it fails or is cut off."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import indent
from typing import Any

import aiohttp
import psutil
import pytest

pytest.importorskip("lightgbm", reason="the predict extra is not installed")

from maestroctl.live.coordinator.own_refit import refit_own
from maestroctl.live.coordinator.predictor_service import LOCAL_MODEL
from maestroctl.predict.client import PredictorClient
from maestroctl.predict.stage_input import StageInput
from tests.support.history import write_history
from tests.support.product import (
    ServeProcess,
    chat,
    free_port,
    processes_under,
    stub_fleet_toml,
    until,
)

STAGE = StageInput(candidates=("alpha",), workflow="made", role="role0", prompt_tokens=25)
FAILS = "os.write(2, b'no space left\\n'); os._exit(3)"
HANGS = "sys.meta_path.insert(0, Hangs())"


def shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:
    """Have every refit process of this test come to harm."""
    folder = tmp_path / "shims"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "class Hangs:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'maestroctl.predict.refit':\n"
        "            time.sleep(3600)\n"
        "if any('own_refit' in word for word in sys.orig_argv):\n"
        f"{indent(harm, '    ')}\n"
    )
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def prepare(tmp_path: Path, after_stages: int, *, jobs: int = 120) -> ServeProcess:
    """A fleet with a history, not started yet."""
    predictor = f"budget_ms = 5000\nrefit_after_stages = {after_stages}"
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(stub_fleet_toml(tmp_path, predictor=predictor))
    write_history(f"sqlite:///{tmp_path}/state.db", jobs)
    return ServeProcess(fleet, tmp_path / "home", free_port())


@asynccontextmanager
async def serving(serve: ServeProcess) -> AsyncIterator[ServeProcess]:
    try:
        await serve.start()
        yield serve
    finally:
        await serve.stop()


async def status(serve: ServeProcess) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.get(serve.url + "/api/predictor/status") as response,
    ):
        return await response.json()


async def reset(serve: ServeProcess, body: Any, expect: int = 200) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(serve.url + "/api/predictor/reset", json=body) as response,
    ):
        assert response.status == expect, await response.text()


async def ask(serve: ServeProcess) -> None:
    """One request, which must not fail."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            serve.url + "/v1/chat/completions", json=chat("hello", max_tokens=8)
        ) as response,
    ):
        assert response.status == 200, await response.text()
        await response.read()


async def result_of(serve: ServeProcess, *wanted: str) -> Any:
    """Ask until the last refit has come to one of these; its status."""
    found: Any = None

    async def has_come() -> bool:
        nonlocal found
        await ask(serve)
        await asyncio.sleep(0.1)  # the refit, at its low priority, has to come to its turn
        found = (await status(serve))["refit"]
        return found["last_result"] in wanted

    await until(has_come, 240)
    return found


async def experts(serve: ServeProcess) -> list[str]:
    """Who answers in the predictor process."""
    pid = (await status(serve))["service"]["pid"]
    argv = psutil.Process(pid).cmdline()
    client = PredictorClient(Path(argv[argv.index("--socket") + 1]), budget_s=30.0)
    said = await client.predict(STAGE)
    await client.close()
    return sorted(said)


def refit_process(serve: ServeProcess) -> psutil.Process | None:
    """The child that fits, while there is one."""
    assert serve.process is not None
    for child in psutil.Process(serve.process.pid).children():
        try:
            if any("own_refit" in word for word in child.cmdline()):
                return child
        except psutil.NoSuchProcess:
            continue
    return None


async def refit_begins(serve: ServeProcess) -> psutil.Process:
    await until(lambda: refit_process(serve) is not None, 60)
    child = refit_process(serve)
    assert child is not None
    return child


async def test_a_better_refit_is_swapped_in_and_a_reset_drops_it(tmp_path: Path) -> None:
    serve = prepare(tmp_path, after_stages=300)
    local = serve.home / LOCAL_MODEL
    async with serving(serve):
        refit = await result_of(serve, "swapped in")
        assert refit["judged_stages"] >= 30, "a quarter of the jobs, those asked here included"
        assert refit["mae_refitted"] < refit["mae_told"]
        assert refit["new_stages"] < 300, "they were used"
        digest = refit["model"]["digest"]
        assert refit["model"]["trained_at"] is not None
        assert local.is_file()
        said = await experts(serve)
        assert said == [f"local-{digest[:12]}", "model"]
        service = (await status(serve))["service"]
        assert service["restarts"] == 0, "swapped, not started again"
        os.kill(service["pid"], signal.SIGKILL)

        async def is_back() -> bool:
            now = (await status(serve))["service"]
            return bool(now["restarts"] and now["state"] == "running")

        await until(is_back, 60)
        assert await experts(serve) == said, "found again by the next process"

        await reset(serve, {"refitted": "yes"}, expect=400)
        await reset(serve, {"workflow": "nobody's", "refitted": True})
        assert not local.exists()
        assert await experts(serve) == ["model"]
        refit = (await status(serve))["refit"]
        assert refit["model"] is None
        assert refit["last_result"] == "dropped"
        assert refit["new_stages"] == 0
    await until(lambda: not processes_under(tmp_path), 10)


async def test_a_refit_that_fails_or_is_killed_leaves_the_model_and_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = prepare(tmp_path, after_stages=300)
    refit_own(f"sqlite:///{tmp_path}/state.db", serve.home / LOCAL_MODEL)
    before = (serve.home / LOCAL_MODEL).read_bytes()
    shim(tmp_path, monkeypatch, FAILS)
    async with serving(serve):
        refit = await result_of(serve, "failed")
        assert refit["reason"] == "no space left"
        assert refit["model"]["digest"] is not None
        assert len(await experts(serve)) == 2
    assert (serve.home / LOCAL_MODEL).read_bytes() == before
    assert serve.log.read_text().count("could not be fitted") == 1
    async with serving(serve):
        assert (await status(serve))["refit"]["new_stages"] >= 360, "they count again"
        assert (await status(serve))["refit"]["last_at"] == refit["last_at"], "it rests"


@pytest.mark.parametrize("end", ["killed", "stopped", "child killed"])
async def test_a_refit_that_is_cut_off_leaves_neither_process_nor_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    serve = prepare(tmp_path, after_stages=300)
    shim(tmp_path, monkeypatch, HANGS)
    async with serving(serve):
        child = await refit_begins(serve)
        await until(lambda: child.nice() > 0, 10)
        assert (await status(serve))["refit"]["running"]
        if end == "child killed":
            child.kill()
            refit = await result_of(serve, "failed")
            assert "status -9" in refit["reason"]
        else:
            serve.send(signal.SIGKILL if end == "killed" else signal.SIGTERM)
            await serve.wait()
        await until(lambda: not child.is_running(), 10)
    assert not (serve.home / LOCAL_MODEL).exists()
    if end != "child killed":
        monkeypatch.undo()
        async with serving(serve):
            refit = (await status(serve))["refit"]
            assert refit["new_stages"] >= 360
            if end == "killed":
                assert refit["last_result"] == "failed"
                assert "meanwhile" in refit["reason"]
            else:
                assert refit["last_result"] in ("called off", "running", "swapped in")
    await until(lambda: not processes_under(tmp_path), 10)
