"""Ctrl-C again and again during a command that works by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from tests.support.cli import command
from tests.support.product import processes_under, until

SIMULATION = """
[run]
jobs = 1000000
[[model]]
name = "m"
weights = "7 GB"
"""


async def test_ctrl_c_again_and_again_is_quiet(tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    file.write_text(SIMULATION)
    async with command("simulate", file, "--json") as process:
        loaded = f"{process.pid}/maps"
        await until(lambda: "msgspec" in Path("/proc", loaded).read_text())
        ended = asyncio.ensure_future(process.communicate())
        while not ended.done():
            # Not by `send_signal`: it may reap the process before its end is noted.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
            await asyncio.wait([ended], timeout=0.002)
        out, err = await ended
    assert process.returncode in (130, -signal.SIGINT)
    assert out == b""
    assert b"Traceback" not in err
    assert not processes_under(tmp_path)
