"""Reading `/proc`: who a process is, what it carries, what memory it holds.

A process id alone names nothing: the kernel hands it out again. A process is named here by its id
*and* its start time, and an engine's processes by the token in their environment.

See also: `process` (which acts on what is read here), `identity` (what is kept on disk).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "MAESTROCTL_ENGINE_TOKEN"
"""Name of the environment variable that every process of an engine inherits."""

TRACKER_GRACE_S = 2.0
"""How long a resource tracker may tidy up after the rest of its family was killed."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The part of `/proc/PID/stat` that names and places a process.

    Attributes:
        pid: process id.
        state: one letter; ``Z`` is a zombie, ``X`` a dead process.
        session_id: id of its session's leader.
        start_ticks: clock ticks between boot and its start.
    """

    pid: int
    state: str
    session_id: int
    start_ticks: int

    @property
    def is_running(self) -> bool:
        """Whether it still executes (a zombie holds no memory and no socket)."""
        return self.state not in "ZX"


def read_boot_id() -> str:
    """Identity of this boot; start times of different boots cannot be compared."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_stat(pid: int) -> ProcessStat | None:
    """Place and start time of a process, or None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command name is in brackets and may itself hold brackets and spaces: cut at the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        session_id=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def carries_token(pid: int, token: str) -> bool:
    """Whether the process was started with this engine token in its environment."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{TOKEN_VARIABLE}={token}".encode() in environ.split(b"\0")


def iter_pids() -> Iterator[int]:
    """Every process id there is now."""
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            yield int(entry.name)


def find_members(token: str, session_id: int | None = None) -> list[ProcessStat]:
    """Processes that belong to an engine: they carry its token or live in its session.

    Args:
        token: the engine's identity token.
        session_id: the engine's session, only while its leader is known to hold that id
            (running, or a zombie not yet waited for). Otherwise None, because the id may have
            been handed to a stranger.

    Returns:
        Running processes, sorted by id; zombies are left out.
    """
    members = []
    for pid in iter_pids():
        stat = read_stat(pid)
        if stat is None or not stat.is_running:
            continue
        if (session_id is not None and stat.session_id == session_id) or carries_token(pid, token):
            members.append(stat)
    return sorted(members, key=lambda member: member.pid)


def is_same_process(stat: ProcessStat) -> bool:
    """Whether the id still names the process that was read before."""
    now = read_stat(stat.pid)
    return now is not None and now.is_running and now.start_ticks == stat.start_ticks


def signal_process(stat: ProcessStat, signal_number: signal.Signals) -> bool:
    """Send a signal to exactly this process, never to a later owner of its id.

    Returns:
        Whether the signal was sent; False when the process is gone.
    """
    try:
        pidfd = os.pidfd_open(stat.pid)
    except OSError:
        return False
    try:
        # The descriptor pins whatever process has the id now; only then is the check binding.
        if not is_same_process(stat):
            return False
        signal.pidfd_send_signal(pidfd, signal_number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


def kill_members(members: Iterable[ProcessStat], *, spare_trackers: bool) -> None:
    """Kill these processes of an engine.

    Args:
        members: as `find_members` returned them.
        spare_trackers: leave Python's resource trackers alone. One ends by itself once the rest is
            gone, and removes what that left in shared memory; killed, it would stay there.
    """
    for member in members:
        if not (spare_trackers and _is_resource_tracker(member.pid)):
            signal_process(member, signal.SIGKILL)


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def read_pss_bytes(pids: Iterable[int]) -> int:
    """Memory of some processes, shared pages divided among their users.

    Resident size counts a page once per process that maps it, and misleads for a group that
    shares most of its libraries.

    Returns:
        Bytes of proportional set size; processes that are gone count nothing.
    """
    total = 0
    for pid in pids:
        try:
            text = (_PROC / str(pid) / "smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
                break
    return total


def owns_listening_port(pids: Iterable[int], port: int) -> bool:
    """Whether one of the processes listens on a TCP port of this machine.

    Asked before an engine behind a port is believed: after a port collision the answers come
    from somebody else's server.
    """
    inodes = _listening_inodes(port)
    return any(inodes & _socket_inodes(pid) for pid in pids)


def _listening_inodes(port: int) -> set[str]:
    listening = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (_PROC / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                listening.add(fields[9])
    return listening


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass
    return inodes
