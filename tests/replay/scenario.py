"""What a recorded live coordinator did: jobs, requests, a caller that leaves, models that wait."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp

from maestroctl.cli.wiring import Coordinator
from maestroctl.config.workflow import parse_workflow
from maestroctl.domain.fleet import FleetSpec
from maestroctl.gateway.submit import JobRequest
from tests.support.product import chat, stub_fleet, until

WORKFLOW = """
[workflow]
name = "two"
deadline_s = 60

[[step]]
name = "first"
models = ["alpha"]
prompt = "TOKENS 4"

[[step]]
name = "many"
after = ["first"]
models = ["beta"]
for_each = "{{ [1, 2, 3] }}"
prompt = "TOKENS 6"

[[step]]
name = "last"
after = ["many"]
models = ["alpha", "beta"]
prompt = "TOKENS 3"
"""
ONE_OF_TWO = "3900 MiB"
"""Two sleeping stub engines fit; with one of them awake the other must sleep or stop."""


def two_models_of_which_one_fits(tmp_path: Path, **options: Any) -> FleetSpec:
    """A fleet whose engines are stubs."""
    models: dict[str, tuple[str, ...]] = {"alpha": (), "beta": ()}
    return stub_fleet(tmp_path, models=models, memory=ONE_OF_TWO, **options)


async def run_jobs(coordinator: Coordinator, number: int) -> None:
    """Submit so many jobs at once and wait until they are over, all of them finished."""
    request = JobRequest(parse_workflow(WORKFLOW))
    jobs = [await coordinator.control.submit_job(request) for _ in range(number)]

    async def are_over() -> bool:
        views = [await coordinator.control.job(job) for job in jobs]
        return all(view is not None and view["finished_at"] for view in views)

    await until(are_over, 60)
    views = [await coordinator.control.job(job) for job in jobs]
    assert [view and view["status"] for view in views] == ["finished"] * number, views


async def run_a_bit_of_everything(coordinator: Coordinator) -> None:
    """Jobs beside plain requests, one of which is given up."""
    jobs = asyncio.create_task(run_jobs(coordinator, 3))
    url = coordinator.url + "/v1/chat/completions"
    async with aiohttp.ClientSession() as session:
        answers = [session.post(url, json=chat("TOKENS 5", m)) for m in ("alpha", "beta")]
        for answer in await asyncio.gather(*answers):
            assert answer.status == 200
            await answer.read()
        with contextlib.suppress(TimeoutError):
            leaves = aiohttp.ClientTimeout(total=0.05)
            async with session.post(url, json=chat("TOKENS 500", "beta"), timeout=leaves) as answer:
                await answer.read()
    await jobs
