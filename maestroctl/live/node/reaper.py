"""Ends the engines of a daemon that was killed and that nobody starts again.

A killed daemon leaves its engines on purpose: starting one takes half a minute, and the coordinator
starts the daemon again at once. When coordinator and daemon die together there is nobody to do so,
so each daemon has this small process beside it, which reads from a pipe and otherwise sleeps.

1. the daemon says goodbye before it exits: nothing to do;
2. the pipe closes without it: wait out the linger time; a new daemon on the same folder (it owns
   the lock) takes the engines over and has a reaper of its own;
3. nobody came: own the folder, so that no daemon starts meanwhile, and end every engine.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

LOCK_NAME = "daemon.lock"
_POLL_S = 0.2
_DYING_POLLS = 10
"""Polls, two seconds: what the kernel may need to put a killed daemon away."""
_GRACE_S = 5.0


class Reaper:
    """The daemon's end of the pipe."""

    def __init__(self, state_dir: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "maestroctl.live.node.reaper", str(state_dir)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def set_linger(self, seconds: float) -> None:
        """How long to wait for another daemon."""
        self._tell(f"{seconds}\n")

    def dismiss(self) -> None:
        """The daemon ends in good order: its engines are stopped, or left for the next one."""
        self._tell("bye\n")
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(10)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:  # somebody killed it: the next daemon's start still sweeps
            pass


def main(state_dir: Path) -> int:
    """Wait for the daemon's end; 0 unless engines survived."""
    linger_s = 15.0
    for line in sys.stdin:
        if line == "bye\n":
            return 0
        linger_s = float(line)
    deadline = time.monotonic() + linger_s
    lock = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    if _is_taken_over(lock, deadline) or not _own(lock):
        return 0
    return _end_engines(state_dir)


def _is_taken_over(lock: int, deadline: float) -> bool:
    """Does a new daemon come before the deadline?

    The pipe of a daemon that is killed closes before its lock does: a lock that is taken belongs to
    a new daemon only if it stays so, which may be known after the deadline only.
    """
    taken_polls = 0
    while time.monotonic() < deadline or taken_polls:
        if _own(lock):
            fcntl.flock(lock, fcntl.LOCK_UN)
            taken_polls = 0
        else:
            taken_polls += 1
        if taken_polls > _DYING_POLLS:
            return True
        time.sleep(_POLL_S)
    return False


def _own(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end_engines(state_dir: Path) -> int:
    import asyncio

    from maestroctl.errors import EngineError
    from maestroctl.live.engine.orphans import end_orphan, find_orphans

    async def end_all() -> int:
        failed = 0
        for orphan in find_orphans(state_dir):
            try:
                await end_orphan(state_dir, orphan, _GRACE_S)
            except EngineError as exc:
                sys.stderr.write(f"{exc}\n")
                failed = 1
        return failed

    return asyncio.run(end_all())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
