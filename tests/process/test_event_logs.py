"""What live cores are told is recorded, and decided alike when it is replayed."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import aiohttp

from maestroctl.domain.fleet import EventLogSpec
from maestroctl.replay.run import Replay, replay_log
from tests.replay.scenario import run_a_bit_of_everything, two_models_of_which_one_fits
from tests.support.product import (
    ServeProcess,
    chat,
    free_port,
    processes_under,
    running_coordinator,
    stub_fleet,
    stub_fleet_toml,
    until,
)


def replay_all(folder: Path) -> dict[str, Replay]:
    """Every log of a folder by its name; each one is decided as recorded."""
    found = {path.stem: replay_log(path) for path in sorted(folder.glob("*.jsonl"))}
    for one in found.values():
        assert one.difference is None, "\n".join(one.difference.diff)
    return found


async def test_live_logs_of_both_cores_replay_equal(tmp_path: Path) -> None:
    fleet = two_models_of_which_one_fits(tmp_path)
    async with running_coordinator(fleet, tmp_path) as coordinator:
        await run_a_bit_of_everything(coordinator)
    found = replay_all(tmp_path / "home" / "events")
    assert set(found) == {"coordinator", "node-local"}
    assert found["coordinator"].num_events > 50
    assert found["node-local"].num_events > 30


async def test_logs_go_where_the_fleet_says_and_not_when_it_says_so(tmp_path: Path) -> None:
    fleet = stub_fleet(tmp_path)
    elsewhere = replace(fleet, event_log=EventLogSpec(folder=str(tmp_path / "logs")))
    async with running_coordinator(elsewhere, tmp_path):
        pass
    assert {path.name for path in (tmp_path / "logs").iterdir()} >= {"coordinator.jsonl"}
    assert not (tmp_path / "home" / "events").exists()
    off = replace(fleet, event_log=EventLogSpec(enabled=False))
    async with running_coordinator(off, tmp_path):
        pass
    assert not (tmp_path / "home" / "events").exists()


async def test_a_log_survives_the_kill_of_its_writer(tmp_path: Path) -> None:
    fleet_file = tmp_path / "fleet.toml"
    fleet_file.write_text(stub_fleet_toml(tmp_path))
    serve = ServeProcess(fleet_file, tmp_path / "home", free_port())
    log = tmp_path / "home" / "events" / "coordinator.jsonl"
    await serve.start()
    try:
        url = serve.url + "/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=chat("TOKENS 5")) as r,
        ):
            assert r.status == 200
        await until(lambda: b"ResolveStage" in log.read_bytes())
        serve.send(signal.SIGKILL)
        await serve.wait()
        log.write_bytes(log.read_bytes()[:-3])  # as a write that was cut
        first = replay_log(log)
        assert first.difference is None
        assert first.num_events > 3
        await serve.start()  # a second life: its own log, the first one moved up
        assert log.with_name("coordinator.jsonl.1").exists()
    finally:
        await serve.stop()
    await until(lambda: not processes_under(tmp_path))
    replay_all(log.parent)
