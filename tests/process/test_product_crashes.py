"""`kill -9` of each process at any moment: no job lost or completed twice, nothing left behind."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import AsyncIterator
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

WORKFLOW: dict[str, Any] = {
    "name": "chain",
    "service_class": "batch",
    "steps": {
        name: {
            "name": name,
            "role": "worker",
            "prompt": f"TOKENS 20 {name}",
            "models": ["alpha"],
            "after": [before] if before else [],
        }
        for name, before in (("one", None), ("two", "one"), ("three", "two"), ("four", "three"))
    },
}


@pytest.fixture
async def serve(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ServeProcess]:
    """``maestroctl serve`` with one stub engine that gives a token every 20 ms.

    A parameter is the linger time of its daemon, seconds.
    """
    fleet = tmp_path / "fleet.toml"
    text = stub_fleet_toml(tmp_path, flags=("--token-interval", "0.02"))
    fleet.write_text(text.replace("linger_s = 8", f"linger_s = {getattr(request, 'param', 8)}"))
    process = ServeProcess(fleet, tmp_path / "home", free_port())
    await process.start()
    try:
        yield process
    finally:
        await process.stop()
        for left in processes_under(tmp_path):
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


async def call(serve: ServeProcess, method: str, path: str, body: Any = None) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, serve.url + path, json=body) as response,
    ):
        assert response.status < 400, await response.text()
        return await response.json(content_type=None)


async def submit(serve: ServeProcess) -> str:
    job = await call(serve, "POST", "/api/jobs", {"workflow": WORKFLOW, "input": "go"})
    return str(job["job_id"])


async def job(serve: ServeProcess, job_id: str) -> Any:
    return await call(serve, "GET", f"/api/jobs/{job_id}")


async def until_steps(serve: ServeProcess, job_id: str, count: int) -> None:
    async def enough() -> bool:
        return len((await job(serve, job_id))["steps"]) >= count

    await until(enough)


async def until_finished(serve: ServeProcess, job_id: str) -> Any:
    async def finished() -> Any:
        document = await job(serve, job_id)
        return document if document["status"] == "finished" else None

    return await until(finished, 40.0)


async def until_nothing_runs(tmp_path: Path) -> None:
    try:
        await until(lambda: not processes_under(tmp_path), 60.0)
    except AssertionError:
        left = [(p.pid, p.ppid(), p.cmdline()) for p in processes_under(tmp_path)]
        raise AssertionError(f"left behind: {left}") from None


def process_of(tmp_path: Path, word: str) -> psutil.Process:
    (found,) = [p for p in processes_under(tmp_path) if word in " ".join(p.cmdline())]
    return found


def assert_each_step_once(tmp_path: Path, job_id: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db")) as database:
        steps = database.execute(
            "select step, count(*) from step_results where job_id = ? group by step", (job_id,)
        ).fetchall()
        finished = database.execute(
            "select step, count(*) from stage_attempts"
            " where job_id = ? and outcome = 'finished' group by step",
            (job_id,),
        ).fetchall()
    assert dict(steps) == dict.fromkeys(WORKFLOW["steps"], 1)
    assert dict(finished) == dict.fromkeys(WORKFLOW["steps"], 1)


@pytest.mark.parametrize("serve", [60], indirect=True)  # a loaded machine starts slowly
@pytest.mark.parametrize("done", [0, 1, 3])
async def test_a_killed_coordinator_resumes_its_jobs(
    serve: ServeProcess, tmp_path: Path, done: int
) -> None:
    job_id = await submit(serve)
    await until_steps(serve, job_id, done)
    engine = process_of(tmp_path, "stub_engine") if done else None
    serve.send(signal.SIGKILL)
    await serve.wait()
    await serve.start()
    document = await until_finished(serve, job_id)
    assert document["output"]
    assert_each_step_once(tmp_path, job_id)
    if engine is not None:
        assert process_of(tmp_path, "stub_engine").pid == engine.pid, "the engine was kept"


async def test_a_killed_coordinator_that_never_returns_leaves_nothing(
    serve: ServeProcess, tmp_path: Path
) -> None:
    await submit(serve)
    await until(
        lambda: any("stub_engine" in " ".join(p.cmdline()) for p in processes_under(tmp_path))
    )
    serve.send(signal.SIGKILL)
    await serve.wait()
    await until_nothing_runs(tmp_path)


async def test_a_killed_daemon_is_started_again_and_finds_its_engine(
    serve: ServeProcess, tmp_path: Path
) -> None:
    job_id = await submit(serve)
    await until_steps(serve, job_id, 1)
    engine = process_of(tmp_path, "stub_engine").pid
    process_of(tmp_path, "--name local").kill()
    document = await until_finished(serve, job_id)
    assert document["output"]
    assert process_of(tmp_path, "stub_engine").pid == engine


async def test_a_killed_engine_is_started_again(serve: ServeProcess, tmp_path: Path) -> None:
    job_id = await submit(serve)
    await until_steps(serve, job_id, 1)
    process_of(tmp_path, "stub_engine").kill()
    document = await until_finished(serve, job_id)
    assert document["output"]


async def test_a_plain_request_ends_visibly_when_the_coordinator_is_killed(
    serve: ServeProcess,
) -> None:
    async with aiohttp.ClientSession() as session:
        url = serve.url + "/v1/chat/completions"
        async with session.post(url, json=chat("TOKENS 500", stream=True)) as response:
            await response.content.readany()
            serve.send(signal.SIGKILL)
            await serve.wait()
            with pytest.raises(aiohttp.ClientError):
                await response.content.read()
    await serve.start()
    (plain,) = (await call(serve, "GET", "/api/jobs"))["jobs"]
    assert plain["status"] == "interrupted"


@pytest.mark.parametrize("serve", [60], indirect=True)  # a loaded machine starts slowly
async def test_both_killed_at_once_leave_engines_that_the_next_start_takes_over(
    serve: ServeProcess, tmp_path: Path
) -> None:
    job_id = await submit(serve)
    await until_steps(serve, job_id, 1)
    engine = process_of(tmp_path, "stub_engine").pid
    daemon = process_of(tmp_path, "--name local")
    serve.send(signal.SIGKILL)
    daemon.kill()
    await serve.wait()
    await serve.start()
    await until_finished(serve, job_id)
    assert process_of(tmp_path, "stub_engine").pid == engine


async def test_both_killed_for_good_leave_nothing(serve: ServeProcess, tmp_path: Path) -> None:
    job_id = await submit(serve)
    await until_steps(serve, job_id, 1)
    serve.send(signal.SIGKILL)
    process_of(tmp_path, "--name local").kill()
    await serve.wait()
    await until_nothing_runs(tmp_path)


async def test_a_second_coordinator_on_the_same_state_refuses_with_the_pid(
    serve: ServeProcess,
) -> None:
    second = ServeProcess(serve.fleet_file, serve.home, free_port())
    second.log = serve.home.parent / "second.log"
    with pytest.raises(AssertionError):
        await second.start()
    assert await second.wait() == 4
    assert serve.process is not None
    assert str(serve.process.pid) in second.log.read_text()


async def _is_draining(serve: ServeProcess) -> bool:
    async with (
        aiohttp.ClientSession() as session,
        session.get(serve.url + "/ready") as response,
    ):
        return "shutting down" in await response.text()


async def test_the_first_interrupt_drains_and_the_second_stops_now(
    serve: ServeProcess, tmp_path: Path
) -> None:
    async with aiohttp.ClientSession() as session:
        url = serve.url + "/v1/chat/completions"
        async with session.post(url, json=chat("TOKENS 50", stream=True)) as response:
            await response.content.readany()
            serve.send(signal.SIGINT)
            text = b"".join([part async for part in response.content.iter_any()])
            assert text.endswith(b"[DONE]\n\n"), "the first Ctrl-C lets it finish"
    assert await serve.wait() == 0
    assert processes_under(tmp_path) == []

    await serve.start()
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=chat("TOKENS 5000", stream=True)) as response,
    ):
        await response.content.readany()
        serve.send(signal.SIGTERM)
        await until(lambda: _is_draining(serve))
        serve.send(signal.SIGTERM)
        with contextlib.suppress(aiohttp.ClientError):
            text = b"".join([part async for part in response.content.iter_any()])
            assert b"[DONE]" not in text
    assert await serve.wait() == 0
    assert processes_under(tmp_path) == []
