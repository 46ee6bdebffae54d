"""When the reaper ends engines and when it leaves them: who holds the daemon's lock, and how long.

The clock is the test's: each poll is a sleep, during which the lock changes hands as told.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from maestroctl.live.node import reaper


@dataclass
class Scene:
    """A killed daemon's folder.

    Attributes:
        changes: poll -> what happens to the lock then.
        polls: so many times the reaper has slept.
        ended: the engines were ended.
    """

    folder: Path
    changes: dict[int, Callable[[], None]] = field(default_factory=dict)
    polls: int = 0
    ended: bool = False
    holder: int | None = None

    def take(self) -> None:
        """A daemon takes the lock, as another open file of it."""
        self.holder = os.open(self.folder / reaper.LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.holder, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """The kernel has put the holder away."""
        if self.holder is not None:
            os.close(self.holder)
        self.holder = None

    def sleep(self, seconds: float) -> None:
        assert seconds == reaper._POLL_S
        self.polls += 1
        self.changes.pop(self.polls, lambda: None)()

    def end_engines(self, _: Path) -> int:
        self.ended = True
        return 0

    def run(self) -> None:
        """The reaper from the end of its pipe on."""
        assert reaper.main(self.folder) == 0


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Linger time two seconds, ten polls, unless a test says otherwise."""
    scene = Scene(tmp_path)
    monkeypatch.setattr(reaper.sys, "stdin", ["2.0\n"])
    monkeypatch.setattr(reaper.time, "sleep", scene.sleep)
    monkeypatch.setattr(reaper.time, "monotonic", lambda: scene.polls * reaper._POLL_S)
    monkeypatch.setattr(reaper, "_end_engines", scene.end_engines)
    yield scene
    scene.release()


def test_engines_of_a_killed_daemon_are_ended_after_the_linger_time(scene: Scene) -> None:
    scene.run()
    assert scene.ended
    assert scene.polls == 10


@pytest.mark.parametrize("polls", [1, 5, reaper._DYING_POLLS])
def test_a_killed_daemons_lock_that_outlives_its_pipe_is_not_a_new_daemon(
    scene: Scene, polls: int
) -> None:
    scene.take()
    scene.changes[polls] = scene.release
    scene.run()
    assert scene.ended


def test_a_lock_that_outlives_even_the_linger_time_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper.sys, "stdin", ["0.5\n"])
    scene.take()
    scene.changes[6] = scene.release
    scene.run()
    assert scene.ended


def test_a_lock_that_stays_taken_is_a_new_daemons_and_its_engines_are_left_alone(
    scene: Scene,
) -> None:
    scene.take()
    scene.run()
    assert not scene.ended
    assert scene.polls == reaper._DYING_POLLS


def test_a_new_daemon_that_comes_at_the_last_moment_keeps_the_engines(scene: Scene) -> None:
    scene.take()
    scene.changes = {2: scene.release, 9: scene.take}
    scene.run()
    assert not scene.ended


def test_after_a_goodbye_nothing_is_ended_and_no_lock_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper.sys, "stdin", ["5.0\n", "bye\n"])
    scene.run()
    assert (scene.ended, scene.polls) == (False, 0)
    assert not (scene.folder / reaper.LOCK_NAME).exists()
