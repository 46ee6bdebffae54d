"""The same events give the same effects, whatever the hash seed of the process."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from tests.properties.coordinator_script import Script

ROOT = Path(__file__).parents[2]


def effects_under(hash_seed: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "tests.properties.coordinator_script"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
        timeout=120,
    )
    return done.stdout


def test_two_hash_seeds_give_the_same_effects() -> None:
    first = effects_under("1")
    assert first.count(b"DispatchStage") > 1000
    for seed in ("2", "random"):
        again = effects_under(seed)
        assert hashlib.sha256(again).digest() == hashlib.sha256(first).digest()


def test_the_script_visits_every_kind_of_effect() -> None:
    script = Script(1)
    script.run(1500)
    script.core.validate()
    kinds = {line.partition("(")[0] for line in script.lines}
    assert kinds == {
        *("SetTimer", "CancelTimer", "RecordDecision", "PrepareStep", "RunStep", "FinishJob"),
        *("DispatchStage", "WithdrawStage", "ResolveStage", "AdvisePrewarm"),
    }
    assert script.core.counters.refused > 10
    assert script.core.counters.retried > 10
