"""``kill -9`` of a process that writes, again and again: what it acknowledged is there, whole."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from maestroctl.domain.outcome import JobStatus
from maestroctl.store.database import Store

DEADLINE_S = 20.0

# Each round commits a job, a step result and an attempt together and then says so.
WRITER = """
import asyncio, sys
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.rows import DecisionRow, JobRow, StageAttemptRow, StepResultRow

async def one(journal, name):
    rows = [JobRow(name, 1.0, output="x" * 200),
            StepResultRow(name, "s", 1, 0, 1, "y" * 3000, 1.0),
            StageAttemptRow(name + "-s", name, 1, 1.0)]
    journal.write([DecisionRow(1.0, "route", name, "n", "why")])
    await journal.commit(rows)
    print(name, flush=True)

async def main(url, prefix):
    journal = Journal(Store.open(url))
    number = 0
    while True:
        await asyncio.gather(*(one(journal, f"{prefix}-{number + i}") for i in range(5)))
        number += 5

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


def acknowledged_before_kill(url: str, prefix: str, lines_to_see: int) -> Iterator[str]:
    """Run the writer, kill it some time after that many lines; yields every line it printed."""
    command = [sys.executable, "-c", WRITER, url, prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        guard = threading.Timer(DEADLINE_S, writer.kill)
        guard.start()
        assert writer.stdout is not None
        for count, line in enumerate(writer.stdout, start=1):
            if count == lines_to_see:
                writer.send_signal(signal.SIGKILL)
            if line.endswith("\n"):
                yield line.strip()
        guard.cancel()
    assert writer.returncode == -signal.SIGKILL


def test_everything_acknowledged_survives_kill_and_nothing_is_half_there(url: str) -> None:
    chance = random.Random(7)
    acknowledged: list[str] = []
    for life in range(8):
        acknowledged += acknowledged_before_kill(url, f"life{life}", chance.randrange(3, 120))
        with Store.open(url) as store:  # the lock went with the process
            jobs = {job.job_id: job for job in store.jobs(limit=10**6)}
            assert set(acknowledged) <= set(jobs)
            for name in jobs:
                assert [len(row.output) for row in store.step_results(name)] == [3000]
                assert len(store.attempts(name)) == 1
            for name in acknowledged:  # written before the commit that was acknowledged
                assert len(store.decisions(name)) == 1
    assert len(acknowledged) > 100


def test_a_killed_coordinator_leaves_its_jobs_to_be_resumed(url: str) -> None:
    names = list(acknowledged_before_kill(url, "job", 10))
    with Store.open(url) as store:
        assert set(names) <= {job.job_id for job in store.unfinished_jobs()}
        assert store.interrupt_external(2.0) == 0
        assert all(job.status is JobStatus.RUNNING for job in store.unfinished_jobs())
