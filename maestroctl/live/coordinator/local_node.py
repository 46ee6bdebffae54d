"""Keeps the node daemon of this machine alive: a child process that outlives its parent's death.

A daemon that already listens (its coordinator was killed a moment ago) is used again with its
engines. One that dies is started again and finds its engines. The daemon ends by itself when no
coordinator comes back within its linger time, so nothing is left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path

from maestroctl.domain.ids import NodeName
from maestroctl.errors import FleetError, NodeUnreachable
from maestroctl.live.coordinator.node_link import NodeSockets
from maestroctl.live.timers import core_now_s
from maestroctl.live.transport.unix_path import MAX_SOCKET_PATH, fits_socket
from maestroctl.live.transport.wire import open_control

_START_LIMIT_S = 20.0
_POLL_S = 0.03
_PROBE_BYTES = 1 << 16
"""A log and a few small files."""
"""Bytes; `sun_path` of Linux without its end."""


def node_sockets(node_dir: Path) -> NodeSockets:
    """Where the daemon whose state is in `node_dir` listens."""
    return NodeSockets(stages=node_dir / "stages.sock", control=node_dir / "control.sock")


class LocalNode:
    """The daemon of one node on this machine.

    Args:
        node_dir: its state folder, private to the user.
        debug: pass ``--debug`` on.
    """

    def __init__(self, node: NodeName, node_dir: Path, *, debug: bool = False) -> None:
        self.node = node
        self.sockets = node_sockets(node_dir)
        self._node_dir = node_dir
        self._debug = debug
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """Of the daemon we started; None when we use one that was there."""
        return self._process.pid if self._process is not None else None

    def check_folder(self) -> None:
        """Make the state folder and see that files and sockets can be made in it.

        Raises:
            FleetError: they cannot.
        """
        probe = self._node_dir / f".probe-{os.getpid()}"
        try:
            self._node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                probe.write_bytes(bytes(_PROBE_BYTES))
            finally:
                probe.unlink(missing_ok=True)
        except OSError as exc:
            raise FleetError(
                f"node {self.node!r} cannot keep its state in {self._node_dir}: {exc.strerror}",
                hint="MAESTROCTL_HOME says where; it needs some free space and the right to write",
            ) from exc
        if not fits_socket(self.sockets.control.absolute()):
            raise FleetError(
                f"node {self.node!r} cannot listen in {self._node_dir}: the path of a socket has"
                f" at most {MAX_SOCKET_PATH} bytes",
                hint="set MAESTROCTL_HOME to a shorter path",
            )

    async def ensure(self) -> None:
        """Return once a daemon listens.

        Raises:
            NodeUnreachable: it ended or did not listen in time; carries the end of its log.
        """
        deadline_s = core_now_s() + _START_LIMIT_S
        if await self._listens():
            return
        if self._process is None or self._process.returncode is not None:
            await self._start()
        assert self._process is not None
        while core_now_s() < deadline_s:
            if await self._listens():
                return
            if self._process.returncode is not None:
                raise NodeUnreachable(
                    f"the node daemon of {self.node!r} ended with code"
                    f" {self._process.returncode}: {self._log_end()}"
                )
            await asyncio.sleep(_POLL_S)
        raise NodeUnreachable(
            f"the node daemon of {self.node!r} does not listen: {self._log_end()}"
        )

    async def wait_gone(self, limit_s: float, *, told: bool = True) -> None:
        """Wait until the daemon we started has exited; kill it after `limit_s`.

        Args:
            told: it knows that it is to end; else SIGTERM tells it.
        """
        if self._process is None:
            return
        if not told:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), limit_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _listens(self) -> bool:
        try:
            _, writer = await open_control(str(self.sockets.control))
        except OSError:
            return False
        writer.close()
        return True

    async def _start(self) -> None:
        self._node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "maestroctl.live.node", "--name", self.node]
        command += ["--state-dir", str(self._node_dir)]
        if self._debug:
            command.append("--debug")
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log_path(self) -> Path:
        return self._node_dir / "daemon.log"

    def _log_end(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log_path.read_text(errors="replace").splitlines()
            return " / ".join(line.strip() for line in lines[-3:] if line.strip())
        return "no log"
