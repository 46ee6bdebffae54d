"""The same inputs give the same run, in another process and under another hash seed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from maestroctl.scheduler.registry import ORDERINGS, ROUTINGS
from maestroctl.sim.config import make_simulation
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import make_plans
from maestroctl.sim.world import World
from tests.unit.sim.files import SMALL

SCRIPT = """
import hashlib, json, sys
from maestroctl.sim.config import make_simulation
from maestroctl.sim.workload import make_plans
from maestroctl.sim.world import World
from tests.unit.sim.files import SMALL
spec = make_simulation({**SMALL, "policy": {"ordering": sys.argv[1], "routing": sys.argv[2]}})
digest = hashlib.sha256()
def note(record):
    digest.update(repr(record).encode())
result = World(spec.world, spec.error, record=note).run(
    make_plans(spec.workload, spec.source, spec.world.profiles))
for row in [*result.stages, *result.jobs]:
    digest.update(repr(row).encode())
print(digest.hexdigest())
"""


def _digest(ordering: str, routing: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SCRIPT, ordering, routing]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_two_hash_seeds_give_the_same_rows_and_decisions() -> None:
    ordering, routing = list(ORDERINGS)[-1], list(ROUTINGS)[-1]
    digests = [_digest(ordering, routing, seed) for seed in ("0", "1", "4242")]
    assert len(digests[0]) == 64
    assert digests[1:] == digests[:2]


@pytest.mark.parametrize("ordering", ORDERINGS)
def test_every_ordering_finishes_every_job(ordering: str) -> None:
    spec = make_simulation({**SMALL, "policy": {"ordering": ordering}})
    plans = make_plans(spec.workload, spec.source, spec.world.profiles)
    result = World(spec.world, spec.error).run(plans)
    assert sorted(job.job_id for job in result.jobs) == [plan.job_id for plan in plans]
    assert {job.status.value for job in result.jobs} == {"finished"}
    assert len(result.stages) == sum(plan.num_calls for plan in plans)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_finishes_every_job(routing: str) -> None:
    spec = make_simulation({**SMALL, "policy": {"routing": routing}})
    plans = make_plans(spec.workload, spec.source, spec.world.profiles)
    result = World(spec.world, spec.error).run(plans)
    assert {job.status.value for job in result.jobs} == {"finished"}
    assert len(result.jobs) == len(plans)


def test_prediction_errors_change_decisions_but_not_the_jobs() -> None:
    spec = make_simulation(SMALL)
    plans = make_plans(spec.workload, spec.source, spec.world.profiles)
    assert plans == make_plans(spec.workload, spec.source, spec.world.profiles)
    wrong = World(spec.world, PredictionError("lognormal", 1.5)).run(plans)
    right = World(spec.world, PredictionError()).run(plans)
    tokens = [sum(row.output_tokens or 0 for row in r.stages) for r in (wrong, right)]
    assert tokens[0] == tokens[1] == sum(plan.output_tokens for plan in plans)
