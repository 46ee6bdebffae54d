"""Learned predictions in a running coordinator: used, durable, and never in anybody's way."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.product import (
    ServeProcess,
    chat,
    free_port,
    processes_under,
    stub_fleet_toml,
    until,
)


@asynccontextmanager
async def serving(tmp_path: Path, predictor: str) -> AsyncIterator[ServeProcess]:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(stub_fleet_toml(tmp_path, predictor=predictor))
    serve = ServeProcess(fleet, tmp_path / "home", free_port())
    try:
        await serve.start()
        yield serve
    finally:
        await serve.stop()


async def get(serve: ServeProcess, path: str) -> Any:
    async with aiohttp.ClientSession() as session, session.get(serve.url + path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def ask(serve: ServeProcess, text: str, expect: int = 200, **headers: str) -> float:
    """One chat request with the status expected; its seconds."""
    began_s = time.monotonic()
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            serve.url + "/v1/chat/completions", json=chat(text, max_tokens=8), headers=headers
        ) as response,
    ):
        assert response.status == expect, await response.text()
        await response.read()
    return time.monotonic() - began_s


async def status(serve: ServeProcess) -> Any:
    return await get(serve, "/api/predictor/status")


async def listening(serve: ServeProcess) -> int:
    """Wait for the predictor process; its pid."""

    async def runs() -> bool:
        return bool((await status(serve))["service"]["state"] == "running")

    await until(runs, 60)
    return int((await status(serve))["service"]["pid"])


async def predicts(serve: ServeProcess) -> None:
    async def answered() -> bool:
        await ask(serve, "hello")
        return bool((await status(serve))["service"]["predictions"])

    await until(answered, 30)


async def test_predictions_reach_records_and_outlive_a_kill_and_no_orphan_stays(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "enabled = true\nbudget_ms = 1000") as serve:
        await listening(serve)
        await predicts(serve)
        names = {"X-Maestro-Role": "unheard-of", "X-Maestro-Job": "j1"}
        for text in ("", "naïve 日本 🎼 \u0000"):
            await ask(serve, text, **names)
        # The engine's own words: the prompt is longer than the model.
        await ask(serve, "word " * 200_000, expect=400, **names)

        async def recorded() -> bool:
            records = (await get(serve, "/api/decisions?subject=j1"))["decisions"]
            return any(r["kind"] == "predict" and "by the model" in r["reason"] for r in records)

        await until(recorded)
        seen = (await status(serve))["online"]["observations"]
        assert seen >= 3
        pid = (await status(serve))["service"]["pid"]
        await asyncio.sleep(3)  # the documented cadence of saving is 2 s
        serve.send(signal.SIGKILL)
        await serve.wait()
        await until(lambda: not psutil.pid_exists(pid), 10)
        await serve.start()
        assert (await status(serve))["online"]["observations"] == seen
    await until(lambda: not processes_under(tmp_path), 10)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP], ids=("crash", "hang"))
async def test_a_dead_or_hung_process_fails_and_delays_nothing(
    tmp_path: Path, harm: signal.Signals
) -> None:
    async with serving(tmp_path, "enabled = true") as serve:
        pid = await listening(serve)
        await predicts(serve)
        os.kill(pid, harm)
        try:
            harmed = sorted([await ask(serve, f"after {n}") for n in range(20)])
            assert harmed[10] < 1.0
            if harm is signal.SIGKILL:

                async def is_back() -> bool:
                    return bool((await status(serve))["service"]["restarts"])

                await until(is_back, 30)
        finally:
            if harm is signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)


async def test_without_learned_models_serve_says_so_once_and_learns_all_the_same(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, "enabled = false") as serve:
        assert serve.log.read_text().count("No learned predictions") == 1
        await ask(serve, "hello")

        async def learned() -> bool:
            return bool((await status(serve))["online"]["observations"])

        await until(learned)
        async with aiohttp.ClientSession() as session:
            url = serve.url + "/api/predictor/reset"
            async with session.post(url, json={"model": "alpha"}) as response:
                assert (await response.json())["cells_reset"] > 0
            async with session.post(url) as response:
                assert response.status == 200
            async with session.post(url, json={"modle": "alpha"}) as response:
                assert response.status == 400
        assert (await status(serve))["online"]["cells"] == 0
