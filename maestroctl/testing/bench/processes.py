"""Programs that a benchmark runs beside itself, each in a process group of its own, none left over.

Also what the machine did meanwhile: on a shared machine a figure means little without the load
that others put on it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.proc import cpu_seconds

READY_LIMIT_S = 60.0
"""Seconds a program may take to listen unless told otherwise."""
_STOP_LIMIT_S = 30.0
_POLL_S = 0.02


class BenchError(RuntimeError):
    """The benchmark cannot run; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is running."""

    pid: int
    log_path: Path


@asynccontextmanager
async def running(
    argv: Sequence[str],
    log_path: Path,
    is_ready: Callable[[], bool],
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float = READY_LIMIT_S,
) -> AsyncIterator[Program]:
    """Run a program for the length of a block.

    Args:
        argv: its command line.
        log_path: gets what it prints.
        is_ready: asked again and again until it says so; must not block for long.
        env: more environment variables.
        limit_s: seconds it may take to be ready.

    Raises:
        BenchError: it ended or was not ready in time; carries the end of its log.
    """
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    try:
        await _wait_ready(process, argv, log_path, is_ready, limit_s)
        yield Program(process.pid, log_path)
    finally:
        await _end(process)


def heed_terminate() -> None:
    """Let SIGTERM end this benchmark as Ctrl-C does: what it has started is stopped first."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def module_argv(module: str, *arguments: str) -> list[str]:
    """Command line of a module of this project."""
    return [sys.executable, "-m", module, *arguments]


def listens(target: Target) -> bool:
    """Whether somebody takes connections there."""
    family = socket.AF_UNIX if target.path is not None else socket.AF_INET
    address = target.path if target.path is not None else (target.host, target.port)
    with socket.socket(family) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(address) == 0


def free_port() -> int:
    """A TCP port of the loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait for a condition; whether it came true in time."""
    deadline_s = monotonic() + limit_s
    while not condition():
        if monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_S)
    return True


class LoadOfOthers:
    """Processor time that the rest of the machine used during a block.

    Args:
        own: processes of the benchmark; this one is added.
    """

    def __init__(self, own: Iterable[int]) -> None:
        self._own = [os.getpid(), *own]
        self._began_s = monotonic()
        self._busy_s = _busy_seconds()
        self._own_s = cpu_seconds(self._own)

    def cores(self) -> float:
        """Cores that others kept busy on average since this object was made."""
        busy_s = _busy_seconds() - self._busy_s
        own_s = cpu_seconds(self._own) - self._own_s
        return max(0.0, busy_s - own_s) / max(1e-9, monotonic() - self._began_s)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    idle_s = times.idle + times.iowait
    # Guest time is counted in user time already.
    return float(sum(times) - idle_s - times.guest - times.guest_nice)


async def _wait_ready(
    process: asyncio.subprocess.Process,
    argv: Sequence[str],
    log_path: Path,
    is_ready: Callable[[], bool],
    limit_s: float,
) -> None:
    ready = await wait_until(lambda: process.returncode is not None or is_ready(), limit_s)
    if process.returncode is None and ready:
        return
    what = f"ended with {process.returncode}" if ready else f"was not ready after {limit_s:g} s"
    tail = "\n  ".join(log_path.read_text(errors="replace").splitlines()[-15:]) or "nothing"
    raise BenchError(f"{' '.join(argv[:4])} {what}; it said:\n  {tail}")


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM and time to stop, then SIGKILL for whatever is left of the group."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STOP_LIMIT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
