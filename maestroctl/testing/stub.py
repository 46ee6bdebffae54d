"""Start a stub engine for a test and be sure that nothing of it survives.

Usage::

    async with launch_stub(tmp_path, token_interval=0.05, max_num_seqs=2) as stub:
        answer = await stub.chat("TOKENS 5")

Every process gets a group of its own and a random token in its environment; at the end the group is
killed, and then whatever else still carries the token (a grandchild that left the group).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from maestroctl.testing.proc import processes_with_environment, pss_bytes

TOKEN_VARIABLE = "MAESTRO_STUB_TOKEN"
"""Environment variable that marks every process of one stub."""

READY_LIMIT_S = 20.0
"""Seconds a stub may take to listen, beyond its own start delay; normally 0.2."""


@dataclass(slots=True)
class StubHandle:
    """A running stub engine."""

    process: asyncio.subprocess.Process
    socket_path: Path
    base_url: str
    session: aiohttp.ClientSession
    log_path: Path
    argv: list[str]
    token: str = field(repr=False)

    @property
    def pid(self) -> int:
        """Process id of the engine; also its process group."""
        return self.process.pid

    def log_text(self) -> str:
        """Everything the engine has printed."""
        return self.log_path.read_text(errors="replace")

    async def chat(self, text: str, **body: Any) -> dict[str, Any]:
        """One chat completion; the parsed answer, whatever its status."""
        messages = [{"role": "user", "content": text}]
        return await self.post("/v1/chat/completions", {"messages": messages, **body})

    async def post(self, path: str, body: Any = None) -> dict[str, Any]:
        """POST, and the parsed answer."""
        async with self.session.post(path, json=body if body is not None else {}) as response:
            return dict(await response.json())

    async def get(self, path: str) -> dict[str, Any]:
        """GET, and the parsed answer."""
        async with self.session.get(path) as response:
            return dict(await response.json())

    async def set_faults(self, **switches: Any) -> dict[str, Any]:
        """Change failure switches of the running engine; see ``stub_engine.faults``."""
        return await self.post("/stub/faults", switches)

    async def metric(self, name: str) -> float:
        """The first sample of a series, for instance ``num_requests_running``."""
        async with self.session.get("/metrics") as response:
            text = await response.text()
        for line in text.splitlines():
            if line.startswith(f"vllm:{name}{{"):
                return float(line.rsplit(" ", 1)[1])
        raise LookupError(f"the stub has no series {name}")

    def pss_bytes(self) -> int:
        """Proportional set size of the engine's own process."""
        return pss_bytes(self.pid)

    def survivors(self) -> list[int]:
        """Processes that still carry this stub's token."""
        return processes_with(self.token)


@asynccontextmanager
async def launch_stub(
    tmp_path: Path,
    *,
    name: str = "stub",
    port: int | None = None,
    ready: bool = True,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    **flags: Any,
) -> AsyncIterator[StubHandle]:
    """Run a stub engine for the length of a block.

    Args:
        tmp_path: folder for socket and log; keep it short, a socket path has 107 bytes.
        name: of the socket and log file, so several stubs can share the folder.
        port: serve on TCP instead; 0 picks a free port.
        ready: wait until it answers ``/health``.
        extra: more arguments, as they are.
        env: more environment variables.
        flags: flags of the stub: ``token_interval=0.1`` is ``--token-interval 0.1``; True is a bare
            flag; None and False leave it out; a list gives several values.

    Raises:
        RuntimeError: it exited, or did not listen in time, while ``ready``; carries its log.
    """
    socket_path, log_path = tmp_path / f"{name}.sock", tmp_path / f"{name}.log"
    where = ["--uds", str(socket_path)] if port is None else ["--port", str(port)]
    argv = [sys.executable, "-m", "maestroctl.testing.stub_engine", *where]
    argv += [*flag_args(flags), *extra]
    token = secrets.token_hex(16)
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(env or {}), TOKEN_VARIABLE: token},
        )
    try:
        limit_s = READY_LIMIT_S + float(flags.get("start_delay") or 0.0)
        base_url = "http://stub"
        if port is not None:
            base_url = await _tcp_url(process, log_path, limit_s)
        async with _session(base_url, None if port is not None else socket_path) as session:
            handle = StubHandle(process, socket_path, base_url, session, log_path, argv, token)
            if ready:
                await _wait_ready(handle, limit_s)
            yield handle
    finally:
        await _kill(process, token)


def flag_args(flags: Mapping[str, Any]) -> list[str]:
    """Command-line arguments from keyword arguments."""
    args: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        args.append("--" + name.replace("_", "-"))
        if value is not True:
            args += [str(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    return args


def processes_with(token: str) -> list[int]:
    """Live processes that a stub with this token left or still has."""
    return processes_with_environment(f"{TOKEN_VARIABLE}={token}")


async def wait_until(condition: Callable[[], bool], limit_s: float = 5.0) -> None:
    """Wait for a condition instead of guessing a time.

    Raises:
        TimeoutError: it did not become true.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not condition():
        if loop.time() > deadline_s:
            raise TimeoutError(f"not true within {limit_s} s: {condition}")
        await asyncio.sleep(0.005)


def _session(base_url: str, socket_path: Path | None) -> aiohttp.ClientSession:
    connector: aiohttp.BaseConnector
    if socket_path is None:
        connector = aiohttp.TCPConnector(limit=0)
    else:
        connector = aiohttp.UnixConnector(str(socket_path), limit=0)
    return aiohttp.ClientSession(base_url, connector=connector)


async def _tcp_url(process: asyncio.subprocess.Process, log_path: Path, limit_s: float) -> str:
    def printed() -> str | None:
        for line in log_path.read_text(errors="replace").splitlines():
            if " on http://" in line:
                return line.rsplit(" ", 1)[1]
        return None

    await wait_until(lambda: printed() is not None or process.returncode is not None, limit_s)
    url = printed()
    if url is None:
        raise RuntimeError(f"the stub engine exited at start:\n{log_path.read_text()}")
    return url


async def _wait_ready(handle: StubHandle, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while loop.time() < deadline_s:
        if handle.process.returncode is not None:
            raise RuntimeError(f"the stub engine exited at start:\n{handle.log_text()}")
        with suppress(aiohttp.ClientError, OSError):
            async with handle.session.get("/health") as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.005)
    raise RuntimeError(f"the stub engine did not listen in {limit_s} s:\n{handle.log_text()}")


async def _kill(process: asyncio.subprocess.Process, token: str) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in processes_with(token):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await process.wait()
