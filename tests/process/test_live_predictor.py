"""Learned predictions in a running coordinator: used, durable, and never in anybody's way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from maestroctl.predict.client import BUDGET_S
from maestroctl.store.reader import StateReader
from tests.support.product import (
    ServeProcess,
    chat,
    free_port,
    processes_under,
    stub_fleet_toml,
    until,
)


@asynccontextmanager
async def serving(
    tmp_path: Path, predictor: str, flags: tuple[str, ...] = ()
) -> AsyncIterator[ServeProcess]:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(stub_fleet_toml(tmp_path, predictor=predictor, flags=flags))
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


async def ask(
    serve: ServeProcess, text: str, expect: int = 200, max_tokens: int = 8, **headers: str
) -> float:
    """One chat request with the status expected; its seconds."""
    began_s = time.monotonic()
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            serve.url + "/v1/chat/completions",
            json=chat(text, max_tokens=max_tokens),
            headers=headers,
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


def observations_kept(tmp_path: Path) -> int:
    """What a coordinator that starts now would know of."""
    with StateReader.open(f"sqlite:///{tmp_path}/state.db") as store:
        return int(json.loads(store.meta("online/") or "{}").get("observed", 0))


def node_log(serve: ServeProcess) -> bytes:
    """What the node's core was told: corrections of bookings among it."""
    logs = (serve.home / "events").glob("node*.jsonl")
    return b"".join(path.read_bytes() for path in logs)


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
        await until(lambda: observations_kept(tmp_path) == seen)
        serve.send(signal.SIGKILL)
        await serve.wait()
        await until(lambda: not psutil.pid_exists(pid), 10)
        await serve.start()
        assert (await status(serve))["online"]["observations"] == seen
    await until(lambda: not processes_under(tmp_path), 10)


async def test_a_prediction_that_comes_after_its_stage_was_sent_corrects_the_node(
    tmp_path: Path,
) -> None:
    slow = ("--token-interval", "0.2")
    async with serving(tmp_path, "enabled = true\nbudget_ms = 5000", flags=slow) as serve:
        await listening(serve)
        asking = asyncio.ensure_future(ask(serve, "hello", max_tokens=600))
        await until(lambda: b"StageRebooked" in node_log(serve), 30)
        assert not asking.done(), "it runs on"
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking


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

            async def is_back() -> bool:
                await ask(serve, "is it back?")  # a hang is found by those who ask
                return bool((await status(serve))["service"]["restarts"])

            await until(is_back, 60)
        finally:
            with contextlib.suppress(ProcessLookupError):
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


# --- a process that hangs or speaks nonsense, beside a coordinator without one --------------------

GROUP = """
[[group]]
name = "team"
models = ["alpha", "beta"]
[policy]
model_choice = "maestroctl"
"""
SLACK_S = 0.1
"""What a loaded machine may add to a median."""


@asynccontextmanager
async def two_models(folder: Path, predictor: str) -> AsyncIterator[ServeProcess]:
    """A group of two models: every request waits for the predictor before its model is chosen."""
    folder.mkdir()
    fleet = folder / "fleet.toml"
    models: Mapping[str, tuple[str, ...]] = {"alpha": (), "beta": ()}
    fleet.write_text(stub_fleet_toml(folder, models=models, predictor=predictor, extra=GROUP))
    serve = ServeProcess(fleet, folder / "home", free_port())
    try:
        await serve.start()
        for model in models:
            await ask_group(serve, model)
        yield serve
    finally:
        await serve.stop()


async def ask_group(serve: ServeProcess, model: str = "team") -> float:
    began_s = time.monotonic()
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            serve.url + "/v1/chat/completions", json=chat("hello", model, max_tokens=8)
        ) as response,
    ):
        assert response.status == 200, await response.text()
        await response.read()
    return time.monotonic() - began_s


async def added_median_s(harmed: ServeProcess, plain: ServeProcess, pairs: int) -> float:
    """Median latency of the one less that of the other, asked in turns."""
    with_s, without_s = [], []
    for _ in range(pairs):
        with_s.append(await ask_group(harmed))
        without_s.append(await ask_group(plain))
    return statistics.median(with_s) - statistics.median(without_s)


@asynccontextmanager
async def both(tmp_path: Path) -> AsyncIterator[tuple[ServeProcess, ServeProcess, int]]:
    async with AsyncExitStack() as stack:
        enabled = await stack.enter_async_context(two_models(tmp_path / "on", "enabled = true"))
        disabled = await stack.enter_async_context(two_models(tmp_path / "off", "enabled = false"))
        yield enabled, disabled, await listening(enabled)


async def test_a_stopped_process_adds_no_more_than_the_budget(tmp_path: Path) -> None:
    async with both(tmp_path) as (enabled, disabled, pid):
        os.kill(pid, signal.SIGSTOP)
        try:
            added_s = await added_median_s(enabled, disabled, 20)
            # At once: more stages than the client needs to give up on the process.
            await asyncio.gather(*(ask_group(enabled) for _ in range(40)))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert added_s <= BUDGET_S + SLACK_S
        assert (await status(enabled))["service"]["fallbacks"] >= 5


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return len(body).to_bytes(4, "big") + body


def _said(**changes: Any) -> Any:
    figures = {"alpha": [1, 2, 3], "beta": [1, 2, 3]}
    return {"model": {"p_tool": 0.5, "figures": figures, "confidence": {}} | changes}


_SAID: list[Any] = [
    None,
    [],
    {"model": []},
    {"model": {"p_tool": 0.5, "figures": [], "confidence": {}}},
    {"model": {"p_tool": 0.5, "figures": {"alpha": 3}, "confidence": {}}},
    _said(p_tool="often"),
    _said(p_tool=float("nan")),
    _said(figures={"alpha": [float("nan")] * 3, "beta": [float("inf")] * 3}),
    _said(figures={"alpha": [-5, -9, -1], "beta": [1e300] * 3}),
    _said(figures={"alpha": [1, 2], "beta": [1, 2, 3, 4]}),
    _said(figures={"gamma": [1, 2, 3]}),
    _said(confidence={"alpha": float("inf"), "beta": -3}),
]
_NONSENSE: list[bytes] = [
    b"\xff" * 64,
    b"HTTP/1.1 200 OK\r\n\r\n",
    _frame([1, 2]),
    _frame({"id": [0]}),
    _frame({"id": 99999, "said": {}}),
    (100_000).to_bytes(4, "big") + b"[" * 100_000,
]


@asynccontextmanager
async def nonsense_at(socket: Path) -> AsyncIterator[list[int]]:
    """Takes the predictor's place at its socket; the list counts what it answered."""
    answered: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                asked = json.loads(await reader.readexactly(size))
                turn = len(answered) % (len(_SAID) + len(_NONSENSE))
                answered.append(turn)
                if turn < len(_SAID):
                    writer.write(_frame({"id": asked["id"], "said": _SAID[turn]}))
                else:
                    writer.write(_NONSENSE[turn - len(_SAID)])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    socket.unlink()
    async with await asyncio.start_unix_server(talk, path=str(socket)):
        yield answered


async def test_nonsense_from_the_process_fails_nothing_and_adds_no_more_than_the_budget(
    tmp_path: Path,
) -> None:
    async with both(tmp_path) as (enabled, disabled, pid):
        argv = psutil.Process(pid).cmdline()
        os.kill(pid, signal.SIGSTOP)  # its connection of the warm-up falls silent, then is dropped
        try:
            async with nonsense_at(Path(argv[argv.index("--socket") + 1])) as answered:
                added_s = await added_median_s(enabled, disabled, 20)
                deadline_s = time.monotonic() + 60.0
                while len(set(answered)) < len(_SAID) + len(_NONSENSE):
                    assert time.monotonic() < deadline_s, sorted(set(answered))
                    await ask_group(enabled)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert added_s <= BUDGET_S + SLACK_S


# --- libraries that are not there, or do not load -------------------------------------------------


@pytest.mark.parametrize("libraries", ["missing", "broken"])
async def test_serve_starts_without_the_libraries_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: str
) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    if libraries == "broken":  # found, but their import fails
        for name in ("numpy", "lightgbm"):
            (shims / f"{name}.py").write_text("raise ImportError('libgomp.so.1 is not here')\n")
    else:
        (shims / "sitecustomize.py").write_text(
            "import sys\n"
            "class Gone:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] in ('numpy', 'lightgbm'):\n"
            "            raise ModuleNotFoundError(name)\n"
            "sys.meta_path.insert(0, Gone())\n"
        )
    paths = [str(shims), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    async with serving(tmp_path, "enabled = true") as serve:

        async def known() -> bool:
            return bool((await status(serve))["service"]["state"] == "not_installed")

        await until(known, 30)
        for number in range(3):
            await ask(serve, f"hello {number}")
        assert (await status(serve))["service"]["restarts"] == 0
        log = serve.log.read_text()
        assert log.count("No learned predictions") == 1, log
        assert "Traceback" not in log, log
