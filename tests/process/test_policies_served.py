"""`serve` takes every policy that the registry knows, and its decisions replay.

Each policy serves a small workflow on two models of which one fits, so that it orders, chooses,
routes, wakes and makes room. A policy that is registered later is covered without a change here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from maestroctl.config.fleet import parse_fleet
from maestroctl.replay.run import replay_log
from maestroctl.scheduler.registry import KNOWN_POLICIES
from tests.replay.scenario import ONE_OF_TWO, run_jobs
from tests.support.product import running_coordinator, stub_fleet_toml

EVERY_POLICY = [(key, name) for key, names in KNOWN_POLICIES.items() for name in names]


@pytest.mark.parametrize(("key", "name"), EVERY_POLICY, ids=lambda part: part)
async def test_a_policy_named_in_the_fleet_file_serves(tmp_path: Path, key: str, name: str) -> None:
    text = stub_fleet_toml(
        tmp_path,
        models={"alpha": (), "beta": ()},
        memory=ONE_OF_TWO,
        extra=f'[policy]\n{key} = "{name}"\n',
    )
    fleet = parse_fleet(text, known_policies=KNOWN_POLICIES).spec
    assert getattr(fleet.policy, key) == name
    async with running_coordinator(fleet, tmp_path) as coordinator:
        await run_jobs(coordinator, 2)
    logs = sorted((tmp_path / "home" / "events").glob("*.jsonl"))
    assert [log.stem for log in logs] == ["coordinator", "node-local"]
    for log in logs:
        difference = replay_log(log).difference
        assert difference is None, "\n".join(difference.diff)
