"""`EngineProcess`: one engine as the operating system sees it.

Theory of operation::

    launch ──> running ──stop()──> SIGTERM to all ──grace──> SIGKILL to all ──┐
    adopt  ──>    │                                                           │
                  └───────────── first process ends by itself ────────────────┤
                                                                              v
                               sweep what is left ──> reap ──> forget ──> `exited` resolves

* An engine is a whole family: an API server forks an engine core, which forks workers, and any of
  them can outlive the others, holding memory while the port is already free. So an engine runs in
  a session of its own, every member inherits a random token in its environment, and `exited`
  resolves only when no process with that token or in that session is left.
* The first process is not waited for until the sweep is done. A zombie keeps its process id, and
  with it the session id, from being handed to a stranger, so "in its session" stays meaningful.
* Nothing ties an engine to its daemon's life (no parent-death signal): a daemon that restarts
  adopts the engines that it finds by their identity file. `detach` is leaving on purpose.
* An adopted engine is not our child: its end is seen through a process descriptor, and its exit
  code cannot be known.

See also: `launch`, `procfs` (how members are found and signalled), `identity`, `orphans`, `logs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from maestroctl.errors import EngineError
from maestroctl.live.engine import identity as identities
from maestroctl.live.engine import procfs
from maestroctl.live.engine.identity import EngineIdentity, is_leader_alive
from maestroctl.live.engine.launch import LaunchSpec, start_process
from maestroctl.live.engine.logs import LogLimits, read_lines_since_start, rotate_log

_POLL_S = 0.05  # how often a dying family is looked at again
_KILL_LIMIT_S = 10.0  # SIGKILL acts at once unless a process hangs inside the kernel
_LOG_CHECK_S = 5.0  # a log can pass its bound by what an engine writes in this time


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How an engine ended.

    Attributes:
        returncode: exit status of its first process, negative for a signal; None when it was
            adopted and the status is not ours to read.
        last_log_lines: the end of its log.
        survivors: process ids that even SIGKILL did not end; empty but for processes stuck in
            the kernel.
    """

    returncode: int | None
    last_log_lines: tuple[str, ...] = ()
    survivors: tuple[int, ...] = ()

    def __str__(self) -> str:
        quoted = "\n  ".join(self.last_log_lines[-8:])
        return self.describe() + (f"; its last log lines:\n  {quoted}" if quoted else "")

    def describe(self) -> str:
        """What happened, for the middle of a sentence."""
        if self.returncode is None:
            return "ended"
        if self.returncode < 0:
            try:
                return f"was ended by {signal.Signals(-self.returncode).name}"
            except ValueError:
                return f"was ended by signal {-self.returncode}"
        return f"exited with status {self.returncode}"


class EngineProcess:
    """Owner of one engine's processes. Made by `launch` or `adopt`, never directly."""

    def __init__(
        self,
        state_dir: Path,
        identity: EngineIdentity,
        child: subprocess.Popen[bytes] | None,
        log_limits: LogLimits,
    ) -> None:
        self.identity = identity
        self.exited: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()
        self._state_dir = state_dir
        self._child = child  # None for an adopted engine
        self._log_limits = log_limits
        self._kill_at_s: float | None = None  # loop time after which members are killed
        self._leader_ended = asyncio.Event()
        self._pidfd = os.pidfd_open(identity.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_leader_ended)
        self._watcher = asyncio.create_task(self._watch(), name=f"engine {identity.engine}")

    # -- making one ---------------------------------------------------------------------------

    @classmethod
    async def launch(cls, spec: LaunchSpec) -> EngineProcess:
        """Start an engine process.

        Raises:
            EngineStartFailed: the program cannot be executed.
        """
        identity, child = start_process(spec)
        return cls(spec.state_dir, identity, child, spec.log_limits)

    @classmethod
    async def adopt(
        cls, state_dir: Path, identity: EngineIdentity, log_limits: LogLimits | None = None
    ) -> EngineProcess:
        """Take over an engine that an earlier daemon started.

        Raises:
            EngineError: its first process is gone, or its id belongs to another process now.
        """
        if not is_leader_alive(identity):
            raise EngineError(
                f"cannot adopt engine '{identity.engine}': its process {identity.pid} is gone"
            )
        return cls(state_dir, identity, None, log_limits or LogLimits())

    # -- reading ------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether its first process is gone; `exited` follows once the rest is swept."""
        return self._leader_ended.is_set() or not is_leader_alive(self.identity)

    def find_members(self) -> list[procfs.ProcessStat]:
        """Its running processes."""
        return procfs.find_members(self.identity.token, self._safe_session_id())

    async def read_pss_bytes(self) -> int:
        """Host memory of all its processes together, shared pages divided."""
        return await asyncio.to_thread(self._read_pss_bytes)

    def read_last_log_lines(self, max_lines: int = 20) -> tuple[str, ...]:
        """The end of its log since this start."""
        return read_lines_since_start(Path(self.identity.log_path), max_lines)

    def quote_log(self) -> str:
        """The same, for the end of an error message; empty when it has said nothing."""
        lines = self.read_last_log_lines(12)
        return "; its last log lines:\n  " + "\n  ".join(lines) if lines else ""

    # -- ending -------------------------------------------------------------------------------

    async def stop(self, grace_s: float) -> EngineExit:
        """Stop every process of the engine and prove that none is left. May be called again.

        Args:
            grace_s: seconds between SIGTERM and SIGKILL.

        Raises:
            EngineError: processes survived SIGKILL.
        """
        if not self.exited.done():
            deadline_s = asyncio.get_running_loop().time() + max(0.0, grace_s)
            if self._kill_at_s is None or deadline_s < self._kill_at_s:
                self._kill_at_s = deadline_s
            await asyncio.to_thread(self._ask_members_to_end)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leader_ended.wait(), grace_s)
            if not self._leader_ended.is_set():
                await asyncio.to_thread(self._kill_members)
        ended = await asyncio.shield(self.exited)
        if ended.survivors:
            raise EngineError(
                f"engine '{self.identity.engine}' is stopped, but SIGKILL did not end process "
                f"{', '.join(map(str, ended.survivors))}",
                hint="a process stuck in the kernel ends when its device driver answers; "
                "`dmesg` says more",
            )
        return ended

    async def detach(self) -> None:
        """Let go of it: it keeps running, and its identity file stays for the next daemon."""
        self._watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watcher
        self._close_pidfd()
        if self._child is not None:
            # Popen warns about a child that still runs when it is collected; this one is meant to.
            self._child.returncode = 0

    # -- inside -------------------------------------------------------------------------------

    def _on_leader_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._leader_ended.set()

    async def _watch(self) -> None:
        log_path = Path(self.identity.log_path)
        while not self._leader_ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leader_ended.wait(), _LOG_CHECK_S)
            await asyncio.to_thread(rotate_log, log_path, self._log_limits)
        survivors = await self._sweep()
        returncode = self._reap()
        self._close_pidfd()
        if not survivors:
            identities.forget(self._state_dir, self.identity)
        self.exited.set_result(EngineExit(returncode, self.read_last_log_lines(), survivors))

    async def _sweep(self) -> tuple[int, ...]:
        """End what the first process left behind; returns what could not be ended."""
        clock = asyncio.get_running_loop().time
        # After an unexpected end the rest is of no use; in a planned stop it keeps its grace.
        kill_at_s = self._kill_at_s if self._kill_at_s is not None else clock()
        give_up_at_s = max(clock(), kill_at_s) + _KILL_LIMIT_S
        while members := await asyncio.to_thread(self.find_members):
            if clock() >= give_up_at_s:
                return tuple(member.pid for member in members)
            if clock() >= kill_at_s:
                spare = clock() < kill_at_s + procfs.TRACKER_GRACE_S
                procfs.kill_members(members, spare_trackers=spare)
            await asyncio.sleep(_POLL_S)
        return ()

    def _ask_members_to_end(self) -> None:
        for member in self.find_members():
            procfs.signal_process(member, signal.SIGTERM)

    def _kill_members(self) -> None:
        procfs.kill_members(self.find_members(), spare_trackers=True)

    def _safe_session_id(self) -> int | None:
        """The session, while its id cannot have been handed to anyone else."""
        if self._child is not None and self._child.returncode is None:
            return self.identity.pid
        return self.identity.pid if is_leader_alive(self.identity) else None

    def _read_pss_bytes(self) -> int:
        return procfs.read_pss_bytes(member.pid for member in self.find_members())

    def _reap(self) -> int | None:
        return None if self._child is None else self._child.wait()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
