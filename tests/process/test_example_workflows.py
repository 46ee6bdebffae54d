"""The example workflows on a real coordinator, node daemon and stub engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maestroctl.config import load_workflow
from maestroctl.config.shipped import shipped_workflows
from maestroctl.gateway.submit import JobRequest
from tests.support.product import running_coordinator, stub_fleet, until

TOOLS = '[tools]\nallow = ["maestroctl.examples.tools:*"]'


@pytest.mark.parametrize("name", shipped_workflows())
async def test_example_workflow_runs_on_the_stub(name: str, tmp_path: Path) -> None:
    workflow = load_workflow(shipped_workflows()[name])
    async with running_coordinator(stub_fleet(tmp_path, extra=TOOLS), tmp_path) as coordinator:
        control = coordinator.control
        job_id = await control.submit_job(JobRequest(workflow, "coffee and tea"))
        events: list[dict[str, Any]] = []

        async def watch() -> None:
            events.extend([event async for event in control.events(job_id)])

        watching = asyncio.create_task(watch())
        job = await until(lambda: _finished(coordinator, job_id), limit_s=60)
        await asyncio.wait_for(watching, 20)
    assert job["status"] == "finished", job
    assert job["output"]
    ran = {step["step"] for step in job["steps"]}
    assert ran == set(workflow.steps)
    assert {event["type"] for event in events} >= {"stage_first_token", "step_finished"}


async def _finished(coordinator: Any, job_id: str) -> dict[str, Any] | None:
    job: dict[str, Any] | None = await coordinator.control.job(job_id)
    return job if job is not None and job["status"] != "running" else None
