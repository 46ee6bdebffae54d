"""Each example workflow runs to its end, whatever a model says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from maestroctl.config import load_workflow, parse_workflow
from maestroctl.config.shipped import shipped_workflows
from maestroctl.config.starter import starter_files
from maestroctl.gateway.submit import JobRequest, StageCall
from tests.unit.live.workflow.fake_host import FakeHost, Say

TOOLS = ("maestroctl.examples.tools:*",)


def babble(call: StageCall) -> Say:
    """What a very small model says: many lines, never what it was asked for."""
    return Say(f"{call.stage.role}\n\n1. one thing\n- another {{ thing }}\n" * 3)


def nothing(_: StageCall) -> Say:
    return Say("")


def approve(_: StageCall) -> Say:
    return Say("APPROVED and OK")


def always_search(call: StageCall) -> Say:
    if call.body.get("tools") and call.body.get("tool_choice") != "none":
        return Say("", [("search_notes", '{"query": "coffee"}')], "tool_calls")
    return Say("found it")


@pytest.mark.parametrize("script", [babble, nothing, approve, always_search])
@pytest.mark.parametrize("name", shipped_workflows())
async def test_example_runs_to_its_end(name: str, script: Callable[[StageCall], Say]) -> None:
    host = FakeHost(script, TOOLS)
    output = await host.run_job(JobRequest(load_workflow(shipped_workflows()[name]), "coffee"))
    assert host.failed is None
    assert output is not None


@pytest.mark.parametrize("script", [babble, nothing, approve, always_search])
async def test_starter_workflow_runs_to_its_end(script: Callable[[StageCall], Say]) -> None:
    host = FakeHost(script, TOOLS)
    spec = parse_workflow(starter_files()["workflow.toml"])
    assert await host.run_job(JobRequest(spec, "coffee")) is not None


async def test_review_ends_at_once_when_it_is_approved() -> None:
    host = FakeHost(approve)
    await host.run_job(JobRequest(load_workflow(shipped_workflows()["code_review"]), "sort"))
    assert [row.step for row in host.rows] == ["plan", "code", "review", "summary"]


async def test_review_sends_the_code_back_with_what_was_said() -> None:
    host = FakeHost(babble)
    await host.run_job(JobRequest(load_workflow(shipped_workflows()["code_review"]), "sort"))
    assert [row.step for row in host.rows] == ["plan", *["code", "review"] * 2, "summary"]
    second = next(p for p in host.prompts() if "The reviewer said:" in p)
    assert "another { thing }" in second
