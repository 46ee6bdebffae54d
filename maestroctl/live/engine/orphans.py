"""Engines that an earlier daemon left running: found again, adopted or ended.

A killed daemon leaves its engines behind on purpose (starting one takes half a minute). The next
daemon reads the identity files, and for each decides among three cases: the first process is
alive and is the one recorded (adoptable); it is gone but members still hold memory (a remnant,
ended here); nothing is left (the file is removed). A process whose id was reused carries neither
the recorded start time nor the token and is never touched.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

from maestroctl.errors import EngineError
from maestroctl.live.engine import identity as identities
from maestroctl.live.engine import procfs
from maestroctl.live.engine.identity import EngineIdentity, is_leader_alive

_POLL_S = 0.05
_KILL_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Orphan:
    """What was found for one identity file.

    Attributes:
        identity: who it is.
        is_adoptable: its first process runs and is the recorded one.
        members: its running processes, token-checked.
    """

    identity: EngineIdentity
    is_adoptable: bool
    members: tuple[procfs.ProcessStat, ...]


def find_orphans(state_dir: Path) -> list[Orphan]:
    """Engines of an earlier daemon that still have a process; forgets those that have none.

    Args:
        state_dir: the node's state folder, owned by the caller (nobody else may be starting
            engines in it).
    """
    orphans = []
    for identity in identities.load_identities(state_dir):
        alive = is_leader_alive(identity)
        members = procfs.find_members(identity.token, identity.pid if alive else None)
        if not members:
            identities.forget(state_dir, identity)
            continue
        orphans.append(Orphan(identity, alive, tuple(members)))
    return orphans


async def end_orphan(state_dir: Path, orphan: Orphan, grace_s: float) -> None:
    """Stop every process of an orphan and forget it.

    Args:
        state_dir: the node's state folder.
        orphan: what `find_orphans` returned.
        grace_s: seconds between SIGTERM and SIGKILL.

    Raises:
        EngineError: processes survived SIGKILL.
    """
    clock = asyncio.get_running_loop().time
    kill_at_s = clock() + grace_s
    give_up_at_s = kill_at_s + _KILL_LIMIT_S
    for member in orphan.members:
        procfs.signal_process(member, signal.SIGTERM)
    while members := await asyncio.to_thread(_find_members, orphan.identity):
        if clock() >= give_up_at_s:
            left = ", ".join(str(member.pid) for member in members)
            raise EngineError(
                f"engine '{orphan.identity.engine}' of an earlier daemon was stopped, but "
                f"SIGKILL did not end process {left}"
            )
        if clock() >= kill_at_s:
            spare = clock() < kill_at_s + procfs.TRACKER_GRACE_S
            procfs.kill_members(members, spare_trackers=spare)
        await asyncio.sleep(_POLL_S)
    identities.forget(state_dir, orphan.identity)


def _find_members(identity: EngineIdentity) -> list[procfs.ProcessStat]:
    session_id = identity.pid if is_leader_alive(identity) else None
    return procfs.find_members(identity.token, session_id)
