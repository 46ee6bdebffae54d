"""Owns the predictor process: starts it, starts it again when it dies, ends it.

The child ends by itself when the pipe to its standard input closes, so no orphan outlives a host
that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

_RESTART_PAUSES_S = (0.1, 0.5, 2.0, 10.0, 30.0)
_END_GRACE_S = 2.0
_STEADY_S = 60.0
CANNOT_RUN = 78
"""Exit status of a child whose libraries do not load: starting it again would not help."""


class ServiceProcess:
    """One predictor process.

    Attributes:
        restarts: how often it had to be started again.
        gave_up: it cannot run here, and is not tried again.
        socket: where it listens.
        local: artifact of a refit on own history that the next start loads; None = none.

    Args:
        socket: made by the child.
        artifact, digest: what it loads; `digest` is checked when given.
        local: artifact of a refit on own history.
        python: interpreter that has the ``predict`` extra.
    """

    def __init__(
        self,
        socket: Path,
        artifact: Path,
        *,
        digest: str | None = None,
        local: Path | None = None,
        python: str = sys.executable,
    ) -> None:
        self.restarts = 0
        self.gave_up = False
        self.local = local
        self.socket = socket
        self._command = [python, "-m", "maestroctl.predict.service", "--socket", str(socket)]
        self._command += ["--artifact", str(artifact)]
        self._command += ["--digest", digest] if digest else []
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running child."""
        running = self._process is not None and self._process.returncode is None
        return self._process.pid if running and self._process else None

    @property
    def is_listening(self) -> bool:
        """The child runs and has its socket open."""
        return self.pid is not None and self.socket.exists()

    async def start(self) -> None:
        """Start the child and watch it; returns before it listens."""
        await self._launch()
        self._watch = asyncio.create_task(self._keep_alive())

    async def wait_listening(self, deadline_s: float = 30.0) -> bool:
        """Whether the socket came up before the deadline."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        while not self.socket.exists():
            if asyncio.get_running_loop().time() >= end_s:
                return False
            await asyncio.sleep(0.02)
        return True

    def start_again(self) -> None:
        """Kill the child; the watch starts another."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the child and the watch."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _END_GRACE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _launch(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.socket.unlink()  # a crashed child's; its presence means "listening"
        # One thread: the process has one core, and OpenMP threads that spin would steal another.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [*self._command, *(["--local", str(self.local)] if self.local else [])]
        # A session of its own: Ctrl-C is for the host, which ends it once it has drained.
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=environment, start_new_session=True
        )

    async def _keep_alive(self) -> None:
        quick_deaths = 0
        loop = asyncio.get_running_loop()
        while self._process is not None:
            born_s = loop.time()
            # At once where a launch failed: the child is still the one that is gone.
            if await self._process.wait() == CANNOT_RUN:
                self.gave_up = True
                return
            quick_deaths = 0 if loop.time() - born_s > _STEADY_S else quick_deaths + 1
            pause = _RESTART_PAUSES_S[min(quick_deaths, len(_RESTART_PAUSES_S) - 1)]
            await asyncio.sleep(pause)
            with contextlib.suppress(OSError):  # no process, memory or descriptor to be had now
                await self._launch()
                self.restarts += 1
