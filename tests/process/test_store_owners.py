"""One owner of the state at a time, over processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from maestroctl.errors import StateLocked
from maestroctl.store.database import Store

OWNER = """
import subprocess, sys
from maestroctl.store.database import Store
store = Store.open(sys.argv[1])
child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
store.close()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


@contextmanager
def owner(url: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that owns the state and has a child; gives both."""
    command = [sys.executable, "-c", OWNER, url]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            subprocess.run(["kill", "-9", str(child)], check=False)


def test_a_second_owner_is_told_the_pid_of_the_first(url: str) -> None:
    with owner(url) as (first, _), pytest.raises(StateLocked, match=rf"pid {first.pid}\b"):
        Store.open(url)


def test_another_name_of_the_same_file_is_the_same_state(url: str, tmp_path: Path) -> None:
    with owner(url):
        (tmp_path / "link.db").symlink_to(tmp_path / "state.db")
        with pytest.raises(StateLocked):
            Store.open(f"sqlite:///{tmp_path}/link.db")


def test_the_state_is_free_once_its_owner_is_killed_though_a_child_lives_on(url: str) -> None:
    with owner(url) as (first, child):
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        assert Path(f"/proc/{child}").exists()
        with Store.open(url) as store:
            assert store.next_epoch() == 1


def test_the_state_is_free_once_its_owner_has_closed_it(url: str) -> None:
    with owner(url) as (first, _):
        first.communicate("", timeout=10)
        Store.open(url).close()
