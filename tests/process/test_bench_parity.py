"""`bench-parity` on a stub engine, whose costs are known: both sides agree, and a run resumes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cli import run

PARITY = ("-m", "maestroctl.testing.bench.parity")


async def test_live_and_simulated_agree_on_an_engine_of_known_costs(tmp_path: Path) -> None:
    env = {"MAESTROCTL_HOME": str(tmp_path / "home")}
    args = ("--stub", "--jobs", "24", "--repeats", "2", "--out", tmp_path / "out")
    done = await run(*args, env=env, program=PARITY, limit_s=120)
    assert done.code == 0, done.err
    figures = json.loads(done.out.splitlines()[-1])
    assert figures["jobs"] == 24
    assert figures["mean_latency_error"] < 0.15, done.out
    assert figures["p95_latency_error"] < 0.25, done.out
    assert figures["decisions_equal"] is True, done.out
    assert "error of the mean" in done.out

    (tmp_path / "out" / "repeats" / "1.json").unlink()
    again = await run(*args, env=env, program=PARITY, limit_s=120)
    assert again.code == 0, again.err
    assert "kept from before" in again.err
    assert "repeat 2 of 2" in again.err
    assert "repeat 1 of 2" not in again.err
    first = json.loads(again.out.splitlines()[-1])["live"]["mean_s"][0]
    assert first == figures["live"]["mean_s"][0]


async def test_without_an_engine_it_says_so(tmp_path: Path) -> None:
    env = {"MAESTROCTL_HOME": str(tmp_path / "home")}
    done = await run("--quick", "--out", tmp_path / "out", env=env, program=PARITY)
    assert done.code == 1
    assert "install.sh" in done.err
