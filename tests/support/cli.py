"""``maestroctl`` as a process, as people run it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

LIMIT_S = 60.0


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)


@asynccontextmanager
async def command(
    *args: object,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    program: tuple[str, ...] = ("-m", "maestroctl"),
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs; killed at the end if it still does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *map(str, args),
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd(), **(env or {})},
    )
    if stdin is not None:
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def finish(process: asyncio.subprocess.Process, limit_s: float = LIMIT_S) -> Done:
    """Wait for its end."""
    out, err = await asyncio.wait_for(process.communicate(), limit_s)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def run(*args: object, limit_s: float = LIMIT_S, **options: Any) -> Done:
    """Run a command to its end."""
    async with command(*args, **options) as process:
        return await finish(process, limit_s)


async def read_until(stream: asyncio.StreamReader | None, text: str, limit_s: float = 30.0) -> str:
    """Read lines up to the first that holds `text`; all of them."""
    assert stream is not None
    seen = ""

    async def read() -> None:
        nonlocal seen
        while text not in seen:
            line = await stream.readline()
            assert line, f"ended without {text!r}:\n{seen}"
            seen += line.decode()

    await asyncio.wait_for(read(), limit_s)
    return seen


async def interrupt(process: asyncio.subprocess.Process) -> Done:
    """Ctrl-C, and wait for the end."""
    process.send_signal(signal.SIGINT)
    return await finish(process)
