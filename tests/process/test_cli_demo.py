"""The demo on stub engines: what it prints, and that nothing of it is left, whatever happens."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Done, command, finish, read_until, run
from tests.support.product import processes_under, until

QUICK = ("--token-interval", "0.01", "--start-delay", "0.3", "--wake-delay", "0.1")
SLOW = ("--token-interval", "0.2", "--start-delay", "1")
PROGRAM = ("-m", "tests.support.stub_demo")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short temporary folder, in which the demo makes its own."""
    path = Path(tempfile.mkdtemp(prefix="d"))
    yield path
    shutil.rmtree(path)


def options(folder: Path, *flags: object) -> dict[str, Any]:
    return {"program": (*PROGRAM, str(folder), *map(str, flags)), "env": {"TMPDIR": str(folder)}}


async def nothing_is_left(folder: Path) -> None:
    await until(lambda: not processes_under(folder), 5.0)
    assert [path.name for path in folder.iterdir()] == ["tiny"]


async def test_demo_runs_both_workflows_and_shows_what_waking_cost(folder: Path) -> None:
    done = await run(**options(folder, *QUICK), limit_s=120)
    assert done.code == 0, done.err
    assert "under three names: scout, writer, critic" in done.out
    assert re.search(r"OpenAI base URL while this runs: http://127.0.0.1:\d+/v1", done.out)
    for title in ("answer (interactive)", "digest (batch)", "answer again", "plain OpenAI request"):
        assert f"\n{title}" in done.out
    for heading in ("STAGE", "ROLE", "MODEL", "WAIT", "WAKE/START", "FIRST", "TOKENS", "TOTAL"):
        assert heading in done.out
    assert re.search(r"cold start +3 ", done.out), "every model is started once"
    assert re.search(r"Waking was \d+ times faster than a cold start", done.out)
    assert "Nothing is left running." in done.out
    await nothing_is_left(folder)


async def test_json_is_one_document_and_progress_goes_to_standard_error(folder: Path) -> None:
    done = await run(**options(folder, *QUICK, "--json"), limit_s=120)
    assert done.code == 0, done.err
    document = done.document
    assert document["engines_that_fit_asleep"] == 2
    assert document["cold_over_wake"] > 1
    assert document["transitions"]["wake"]["count"] >= 2
    assert [job["status"] for job in document["jobs"]] == ["finished"] * 3
    assert "cold start" in done.err
    await nothing_is_left(folder)


async def test_little_memory_means_stopping_instead_of_sleeping(folder: Path) -> None:
    done = await run(**options(folder, *QUICK, "--free", 5 << 30), limit_s=120)
    assert done.code == 0, done.err
    assert "engines are stopped instead" in done.out
    await nothing_is_left(folder)


async def test_memory_for_no_engine_is_refused_at_once(folder: Path) -> None:
    done = await run(**options(folder, *QUICK, "--free", 1 << 30))
    assert done.code == 1
    assert "of free memory for one engine" in done.err
    await nothing_is_left(folder)


@pytest.mark.parametrize(
    "moment",
    [
        "One small model",
        "OpenAI base URL",
        "scout: cold start",
        "writer: cold start",
        "writer answers",
        "critic answers",
    ],
)
async def test_ctrl_c_at_any_stage_leaves_nothing(folder: Path, moment: str) -> None:
    async with command(**options(folder, *SLOW)) as process:
        await read_until(process.stdout, moment, 60)
        process.send_signal(signal.SIGINT)
        done = await finish(process, 30)
    assert done.code == 130, done
    await nothing_is_left(folder)


async def test_sigterm_leaves_nothing(folder: Path) -> None:
    async with command(**options(folder, *SLOW)) as process:
        await read_until(process.stdout, "scout answers", 60)
        process.send_signal(signal.SIGTERM)
        done = await finish(process, 30)
    assert done.code == 130
    assert "Interrupted: everything is stopped." in done.out
    await nothing_is_left(folder)


async def test_second_ctrl_c_does_not_wait_for_engines_that_will_not_go(folder: Path) -> None:
    async with command(**options(folder, *SLOW, "--ignore-sigterm")) as process:
        await read_until(process.stdout, "scout answers", 60)
        process.send_signal(signal.SIGINT)
        await read_until(process.stdout, "stopping the engines")
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        done = await finish(process, 30)
    assert done.code == 130
    assert time.monotonic() - began_s < 10
    await nothing_is_left(folder)


async def test_killed_demo_leaves_no_process(folder: Path) -> None:
    async with command(**options(folder, *SLOW)) as process:
        await read_until(process.stdout, "scout answers", 60)
        process.kill()
        await process.wait()
    await until(lambda: not processes_under(folder), 40)


async def test_engine_that_cannot_start_fails_the_demo_with_its_reason(folder: Path) -> None:
    done = await run(**options(folder, "--refuse-start"), limit_s=120)
    assert done.code == 1
    assert "Error:" in done.err
    assert "scout" in done.err
    await nothing_is_left(folder)


async def test_missing_engine_environment_names_the_installer(tmp_path: Path) -> None:
    done: Done = await run("demo", env={"MAESTROCTL_HOME": str(tmp_path)})
    assert done.code == 1
    assert "engine environment" in done.err
    assert "./install.sh" in done.err
