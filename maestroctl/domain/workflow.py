"""A declared workflow: steps, the edges between them, loops, fan-outs and tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from maestroctl.domain.ids import check_name
from maestroctl.domain.stage import ServiceClass


@dataclass(frozen=True, slots=True)
class RepeatSpec:
    """After the step, go back to `back_to` unless `until` holds, at most `at_most` times in all.

    Attributes:
        until: sandboxed expression over `output`, `input`, `visit` and `steps`.
        at_most: visits of the step, the first included.
    """

    back_to: str
    until: str
    at_most: int = 3


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """``[[tool]]``: a Python callable or an HTTP endpoint that a model may call.

    Attributes:
        parameters: JSON schema of its arguments.
        function: ``module:function``, allowed by ``[tools] allow`` of the fleet.
        url: HTTP endpoint, POSTed the arguments as JSON with an ``Idempotency-Key``.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    function: str | None = None
    url: str | None = None
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One declared node of a workflow: one LLM call, or several with tools, a loop or a fan-out.

    Attributes:
        models: candidates (models, aliases or groups); empty = ``auto``.
        after: steps that must have ended.
        tools: names of `ToolSpec`s the model may call.
        for_each: template of a list; the step runs once per item, as `item`.
        max_tool_rounds: LLM calls that may follow a tool result.
        options: further request fields, passed through unchanged (``temperature``, ...).
    """

    name: str
    prompt: str
    role: str = "assistant"
    system: str | None = None
    models: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    repeat: RepeatSpec | None = None
    for_each: str | None = None
    max_tokens: int | None = None
    max_tool_rounds: int = 8
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("step", self.name)


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """A whole workflow file. `steps` keeps the order of the file.

    Attributes:
        output: step whose output is the job's; None = the last step of the file.
        deadline_s: from submission; None = none.
        variables: defaults of template variables, which ``--var`` overrides.
    """

    name: str
    steps: Mapping[str, StepSpec]
    service_class: ServiceClass = ServiceClass.BATCH
    deadline_s: float | None = None
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    output: str | None = None

    def __post_init__(self) -> None:
        check_name("workflow", self.name)
