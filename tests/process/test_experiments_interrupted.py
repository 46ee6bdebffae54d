"""Ctrl-C during `experiments run`."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import command, interrupt, read_until
from tests.support.product import processes_under, until


async def test_ctrl_c_ends_every_process_and_keeps_what_is_finished(tmp_path: Path) -> None:
    names = ("overcommit", "preemption", "colocation")
    options = ("--quick", "--workers", 2, "--out", tmp_path)
    async with command("experiments", "run", *names, *options) as process:
        await read_until(process.stderr, "wrote", 60.0)
        done = await interrupt(process)  # reads the pipes to their end: no worker holds them
    assert done.code == 130
    assert {path.stem for path in tmp_path.iterdir()} == {"overcommit"}
    assert "Finished and kept: overcommit." in done.err
    assert "experiments run preemption colocation" in done.err
    assert "Traceback" not in done.err


WAITING = """
import signal, sys
from maestroctl.experiments.harness import Runner
Runner(print, workers=2).map(lambda _: signal.pause(), [1, 2])
"""


async def test_no_worker_outlives_a_kill(tmp_path: Path) -> None:
    async with command(tmp_path, program=("-c", WAITING)) as process:
        await until(lambda: len(processes_under(tmp_path)) == 3)
        process.kill()
        await process.wait()
    await until(lambda: not processes_under(tmp_path))
