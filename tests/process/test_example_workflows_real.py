"""Two example workflows on a real model in a real engine, through the whole product.

The engine's environment and the converted model are found as a user's would be, under
``MAESTROCTL_HOME``. Without them the tests are skipped, unless ``MAESTROCTL_REQUIRE_ENGINE=1``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.config import load_workflow, parse_fleet
from maestroctl.config.shipped import shipped_workflow
from maestroctl.config.starter import starter_files
from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import MaestroError
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.engine.factory import find_capabilities
from tests.support.product import until

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def coordinator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Coordinator]:
    """The starter fleet, as ``init`` writes it, with its state in a folder of the test."""
    try:
        await find_capabilities(EngineSpec("default", EngineKind.VLLM_CPU))
    except MaestroError as exc:
        if os.environ.get("MAESTROCTL_REQUIRE_ENGINE") == "1":
            raise
        pytest.skip(f"no real engine here: {exc}")
    state: Path = tmp_path_factory.mktemp("state")
    text = starter_files()["fleet.toml"].replace("127.0.0.1:8080", "127.0.0.1:0")
    environ = {"MAESTROCTL_STATE": f"sqlite:///{state / 'state.db'}"}
    fleet = parse_fleet(text, environ=environ).spec
    coordinator = Coordinator(fleet, CoordinatorOptions(home=state / "home"))
    await coordinator.start()
    yield coordinator
    await coordinator.stop()


@pytest.mark.parametrize("name", ["code_review", "research"])
async def test_example_workflow_runs_on_a_real_model(name: str, coordinator: Coordinator) -> None:
    workflow = load_workflow(shipped_workflow(name), coordinator.fleet)
    job_id = await coordinator.control.submit_job(JobRequest(workflow, "coffee and tea"))

    async def finished() -> dict[str, Any] | None:
        job = await coordinator.control.job(job_id)
        return job if job is not None and job["status"] != "running" else None

    job = await until(finished, limit_s=400)
    assert job["status"] == "finished", job
    assert job["output"].strip()
    assert {step["step"] for step in job["steps"]} == set(workflow.steps)
