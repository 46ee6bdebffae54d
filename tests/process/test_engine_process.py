# ruff: noqa: ASYNC110, ASYNC220, ASYNC222 (tests poll real processes)
"""`EngineProcess` against real processes that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from maestroctl.errors import EngineError, EngineStartFailed
from maestroctl.live.engine import identity as identities
from maestroctl.live.engine import procfs
from maestroctl.live.engine.logs import LogLimits
from maestroctl.live.engine.orphans import end_orphan, find_orphans
from maestroctl.live.engine.process import EngineProcess
from tests.engine_support import kill_leftovers, stub_launch, until


@pytest.fixture(autouse=True)
def _no_leftovers(tmp_path: Path) -> Iterator[None]:
    yield
    kill_leftovers(tmp_path)


def _is_up(process: EngineProcess) -> bool:
    return Path(process.identity.socket_path).exists()


def _no_member_left(token: str) -> bool:
    return not procfs.find_members(token)


async def _started(folder: Path, *flags: str, engine: str = "stub") -> EngineProcess:
    process = await EngineProcess.launch(stub_launch(folder, *flags, engine=engine))
    await until(lambda: _is_up(process) or process.exited.done())
    return process


async def test_stop_ends_the_process_and_forgets_it(tmp_path: Path) -> None:
    process = await _started(tmp_path)
    path = identities.identity_path(tmp_path, "stub")
    assert path.exists()
    await process.stop(grace_s=5)
    assert _no_member_left(process.identity.token)
    assert not path.exists()
    assert not Path(process.identity.socket_path).exists()


async def test_stop_twice_gives_the_same_exit(tmp_path: Path) -> None:
    process = await _started(tmp_path)
    first, second = await asyncio.gather(process.stop(5), process.stop(5))
    assert first == second == await process.stop(0)


async def test_process_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    process = await _started(tmp_path, "--ignore-sigterm")
    ended = await process.stop(grace_s=0.3)
    assert ended.returncode == -signal.SIGKILL
    assert _no_member_left(process.identity.token)


@pytest.mark.parametrize("where", ["group", "session"])
async def test_grandchild_does_not_survive_a_stop(tmp_path: Path, where: str) -> None:
    process = await _started(tmp_path, "--fork-grandchild", where)
    await until(lambda: len(process.find_members()) >= 2)
    await process.stop(grace_s=1)
    assert _no_member_left(process.identity.token)


@pytest.mark.parametrize("where", ["group", "session"])
async def test_grandchild_does_not_survive_a_crash(tmp_path: Path, where: str) -> None:
    process = await _started(tmp_path, "--fork-grandchild", where)
    await until(lambda: len(process.find_members()) >= 2)
    os.kill(process.identity.pid, signal.SIGKILL)
    ended = await asyncio.wait_for(process.exited, 10)
    assert ended.returncode == -signal.SIGKILL
    assert _no_member_left(process.identity.token)


_SHARES_MEMORY = """
import signal, sys, time
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = SharedMemory(create=True, size=4096)
with open(sys.argv[1], "w") as file:
    file.write(memory.name)
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["stop", "crash", "orphan"])
async def test_shared_memory_of_a_killed_engine_is_removed(tmp_path: Path, end: str) -> None:
    note = tmp_path / "name"
    argv = (sys.executable, "-c", _SHARES_MEMORY, str(note))
    process = await EngineProcess.launch(stub_launch(tmp_path, argv=argv))
    await until(lambda: note.exists() and note.read_text() != "")
    memory = Path("/dev/shm") / note.read_text()
    assert memory.exists()
    if end == "stop":
        await process.stop(grace_s=0.1)
    elif end == "crash":
        os.kill(process.identity.pid, signal.SIGKILL)
        await process.exited
    else:
        await process.detach()
        await end_orphan(tmp_path, find_orphans(tmp_path)[0], 0.1)
    assert not memory.exists()
    assert _no_member_left(process.identity.token)


async def test_child_that_erased_its_environment_is_found_by_its_session(tmp_path: Path) -> None:
    script = "import subprocess,time; subprocess.Popen(['sleep','600'],env={}); time.sleep(600)"
    spec = replace(stub_launch(tmp_path), argv=(sys.executable, "-c", script))
    process = await EngineProcess.launch(spec)
    await until(lambda: len(process.find_members()) == 2)
    members = process.find_members()
    await process.stop(grace_s=0.5)
    assert not any(procfs.is_same_process(member) for member in members)


async def test_early_exit_is_seen_with_the_last_log_lines(tmp_path: Path) -> None:
    process = await _started(tmp_path, "--refuse-start")
    ended = await asyncio.wait_for(process.exited, 10)
    assert ended.returncode not in (0, None)
    assert ended.last_log_lines
    assert not any("maestroctl: engine start" in line for line in ended.last_log_lines)


async def test_missing_program_is_a_clear_error_and_leaves_no_identity(tmp_path: Path) -> None:
    spec = replace(stub_launch(tmp_path), argv=("/nonexistent/engine", "--x"))
    with pytest.raises(EngineStartFailed, match="/nonexistent/engine"):
        await EngineProcess.launch(spec)
    assert identities.load_identities(tmp_path) == []


async def test_stale_socket_file_does_not_stop_a_start(tmp_path: Path) -> None:
    (tmp_path / "stub.sock").touch()
    process = await EngineProcess.launch(stub_launch(tmp_path))
    await until(lambda: (tmp_path / "stub.sock").is_socket())
    assert not process.exited.done()
    await process.stop(2)


async def test_too_long_socket_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineStartFailed, match="longer than"):
        await EngineProcess.launch(stub_launch(tmp_path, socket_path=tmp_path / ("x" * 120)))


async def test_detached_engine_is_found_adopted_and_stopped(tmp_path: Path) -> None:
    first = await _started(tmp_path)
    await first.detach()
    (orphan,) = find_orphans(tmp_path)
    assert orphan.is_adoptable
    assert orphan.identity == first.identity
    adopted = await EngineProcess.adopt(tmp_path, orphan.identity)
    ended = await adopted.stop(grace_s=5)
    assert ended.returncode is None
    assert _no_member_left(first.identity.token)
    assert find_orphans(tmp_path) == []


async def test_end_of_an_adopted_engine_is_noticed(tmp_path: Path) -> None:
    first = await _started(tmp_path)
    await first.detach()
    adopted = await EngineProcess.adopt(tmp_path, first.identity)
    os.kill(first.identity.pid, signal.SIGKILL)
    ended = await asyncio.wait_for(adopted.exited, 5)
    assert ended.returncode is None


async def test_remnant_without_its_first_process_is_ended_not_adopted(tmp_path: Path) -> None:
    process = await _started(tmp_path, "--fork-grandchild", "session")
    await until(lambda: len(process.find_members()) >= 2)
    await process.detach()
    os.kill(process.identity.pid, signal.SIGKILL)
    os.waitpid(process.identity.pid, 0)
    (orphan,) = find_orphans(tmp_path)
    assert not orphan.is_adoptable
    await end_orphan(tmp_path, orphan, grace_s=0.5)
    assert _no_member_left(process.identity.token)
    assert identities.load_identities(tmp_path) == []


async def test_engine_started_but_not_yet_recorded_is_found_by_its_token(tmp_path: Path) -> None:
    process = await _started(tmp_path)
    await process.detach()
    intent = replace(process.identity, pid=0, start_ticks=0)
    identities.save_identity(tmp_path, intent)
    (orphan,) = find_orphans(tmp_path)
    assert not orphan.is_adoptable
    await end_orphan(tmp_path, orphan, grace_s=2)
    assert _no_member_left(process.identity.token)


async def test_recycled_pid_is_never_touched(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        stat = procfs.read_stat(stranger.pid)
        assert stat is not None
        # The id and even the start time match, but the stranger carries no token of ours.
        recycled = identities.EngineIdentity(
            token=identities.make_token(),
            engine="stub",
            model="stub",
            generation=1,
            spec_hash="",
            pid=stranger.pid,
            start_ticks=stat.start_ticks,
            boot_id=procfs.read_boot_id(),
        )
        identities.save_identity(tmp_path, recycled)
        assert find_orphans(tmp_path) == []
        with pytest.raises(EngineError, match="cannot adopt"):
            await EngineProcess.adopt(tmp_path, recycled)
        later = replace(stat, start_ticks=stat.start_ticks - 1)
        assert not procfs.signal_process(later, signal.SIGKILL)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_identity_of_another_boot_is_not_adopted(tmp_path: Path) -> None:
    process = await _started(tmp_path)
    await process.detach()
    with pytest.raises(EngineError, match="cannot adopt"):
        await EngineProcess.adopt(tmp_path, replace(process.identity, boot_id="another"))
    adopted = await EngineProcess.adopt(tmp_path, process.identity)
    await adopted.stop(2)


async def test_memory_of_the_whole_family_is_counted(tmp_path: Path) -> None:
    process = await _started(tmp_path, "--weights-mib", "64")
    async with asyncio.timeout(10):
        while await process.read_pss_bytes() < 64 << 20:  # it allocates after it listens
            await asyncio.sleep(0.05)
    await process.stop(2)
    assert await process.read_pss_bytes() == 0


async def test_log_of_a_chatty_engine_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maestroctl.live.engine.process._LOG_CHECK_S", 0.05)
    limits = LogLimits(max_bytes=64 * 1024, keep=2)
    spec = stub_launch(tmp_path, "--log-noise-kib", "256", log_limits=limits)
    process = await EngineProcess.launch(spec)
    log = Path(process.identity.log_path)
    await until(lambda: log.with_name(log.name + ".1").exists())
    await until(lambda: log.stat().st_size <= limits.max_bytes)
    assert not log.with_name(log.name + ".3").exists()
    await process.stop(2)


async def test_cancelled_stop_still_ends_the_engine(tmp_path: Path) -> None:
    process = await _started(tmp_path, "--ignore-sigterm")
    stopping = asyncio.create_task(process.stop(grace_s=0.5))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await process.stop(grace_s=0.2)
    assert _no_member_left(process.identity.token)
