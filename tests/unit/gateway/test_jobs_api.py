"""Requests for workflow runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import RepeatSpec, StepSpec, ToolSpec, WorkflowSpec
from maestroctl.errors import InvalidRequest
from maestroctl.gateway.jobs_api import parse_job

SPEC = WorkflowSpec(
    name="review",
    steps={
        "plan": StepSpec("plan", "{{ input }}", models=("m",), tools=("t",)),
        "code": StepSpec(
            "code", "{{ steps.plan.output }}", after=("plan",), repeat=RepeatSpec("plan", "True", 2)
        ),
    },
    service_class=ServiceClass.INTERACTIVE,
    tools={"t": ToolSpec("t", function="m:f")},
    variables={"x": 1},
)


def document(**changes: Any) -> dict[str, Any]:
    return {"workflow": msgspec.to_builtins(SPEC), **changes}


def test_workflow_survives_the_journey() -> None:
    job = parse_job(
        document(input={"a": 1}, variables={"y": 2}, **{"class": "batch", "deadline_s": "2m"})
    )
    assert job.workflow == SPEC
    assert (job.input, job.variables) == ({"a": 1}, {"y": 2})
    assert (job.service_class, job.deadline_s) == (ServiceClass.BATCH, 120.0)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"workflow": None}, "workflow"),
        ({"workflow": "review.toml"}, "workflow"),
        ({"workflow": {}}, "workflow"),
        ({"workflow": {"name": "a"}}, "workflow"),
        ({"workflow": {"name": "a", "steps": {}}}, "workflow.steps"),
        ({"workflow": {"name": "a", "steps": {"s": 3}}}, "workflow.steps[...]"),
        ({"workflow": {"name": "a", "steps": {"s": {"name": "s"}}}}, "workflow.steps[...]"),
        (
            {"workflow": {"name": "a", "steps": {"s": {"name": "t", "prompt": "x"}}}},
            "workflow.steps.s.name",
        ),
        (
            {"workflow": {"name": "a", "steps": {"s": {"name": "s", "prompt": "x", "promt": 1}}}},
            "workflow.steps.s.promt",
        ),
        ({"workflow": {"name": "../a", "steps": {}}}, "workflow"),
        ({"workflow": {"nam": "a"}}, "workflow.nam"),
        ({"variables": 3}, "variables"),
        ({"class": "urgent"}, "class"),
        ({"deadline_s": -1}, "deadline_s"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"deadline_s": []}, "deadline_s"),
        ({"worklow": 1}, "worklow"),
    ],
    ids=str,
)
def test_error_names_the_field(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_job(document(**change))
    assert caught.value.param == param


def test_unknown_field_names_the_nearest() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_job(document(dedline_s=3))
    assert caught.value.hint == "Did you mean 'deadline_s'?"
