"""What a simulated job is: a declared workflow whose widths, lengths and rounds are known.

Lengths are what a real engine would turn out to produce; cores never see them, only predictions
made from them (`sim.prediction`). Rows are what live hosts store, so `telemetry.metrics` computes
the same figures from both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import StepSpec, WorkflowSpec

Run = tuple[str, int, int]
"""(step, visit, item): one run of a step."""


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call.

    Attributes:
        models: candidates, in order.
        output_tokens: what it will produce on any of them, unless `output_by_model` says more.
        tool_s: seconds of tools that follow it, before the next call of its run.
        tools_available, tool_called: as in the traces.
        noise: two standard normal draws, of the prediction errors of length and of remainder.
        output_by_model: what each of several candidates would produce; then `output_tokens` is
            their mean, which is what a prediction of the stage alone is made from.
    """

    role: str
    models: tuple[ModelName, ...]
    prompt_tokens: int
    output_tokens: int
    tool_s: float = 0.0
    tools_available: int = 0
    tool_called: bool = False
    noise: tuple[float, float] = (0.0, 0.0)
    output_by_model: Mapping[ModelName, int] = field(default_factory=dict)

    def tokens_on(self, model: ModelName) -> int:
        """Output tokens that the call will produce on `model`."""
        return self.output_by_model.get(model, self.output_tokens)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job.

    Attributes:
        arrival_s: when it is submitted.
        calls: of each run of a step, in order.
        widths: fan-out of (step, visit), where it is not 1.
        goes_back: runs whose step is repeated.
        confidence: what a router says of each candidate model, where there is one.
        deadline_s: from submission; None = none.
    """

    job_id: JobId
    workflow: WorkflowSpec
    service_class: ServiceClass
    arrival_s: float
    calls: Mapping[Run, Sequence[Call]]
    deadline_s: float | None = None
    widths: Mapping[tuple[str, int], int] = field(default_factory=dict)
    goes_back: frozenset[Run] = frozenset()
    confidence: Mapping[ModelName, float] = field(default_factory=dict)

    @property
    def models(self) -> tuple[ModelName, ...]:
        """Every candidate of any call, in the order in which they come."""
        found = (model for calls in self.calls.values() for call in calls for model in call.models)
        return tuple(dict.fromkeys(found))

    @property
    def num_calls(self) -> int:
        """LLM calls of the whole job."""
        return sum(len(calls) for calls in self.calls.values())

    @property
    def output_tokens(self) -> int:
        """Output tokens of the whole job."""
        return sum(call.output_tokens for calls in self.calls.values() for call in calls)


@dataclass(slots=True)
class StageRow:
    """One stage, its last attempt; the fields of `store.rows.StageAttemptRow`."""

    stage_id: str
    job_id: str
    attempt: int
    arrived_at: float
    step: str
    role: str
    service_class: ServiceClass
    model: str = ""
    node: str = ""
    outcome: Outcome | None = None
    reason: str = ""
    dispatched_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = 0
    activation: str = ""
    activation_s: float = 0.0
    streamed: bool = True


@dataclass(slots=True)
class JobRow:
    """One job; the fields of `store.rows.JobRow` that formulas read."""

    job_id: str
    submitted_at: float
    workflow: str
    service_class: ServiceClass
    deadline_s: float | None = None
    status: JobStatus = JobStatus.RUNNING
    reason: str = ""
    finished_at: float | None = None
    num_stages: int = 0


AGENT_STEP = "agent"


def agent_workflow(name: str) -> WorkflowSpec:
    """A workflow of one step that makes as many calls as it likes: an agent loop with tools."""
    return WorkflowSpec(name, {AGENT_STEP: StepSpec(AGENT_STEP, "")})


def agent_calls(calls: Sequence[Call]) -> dict[Run, Sequence[Call]]:
    """The calls of an `agent_workflow`."""
    return {(AGENT_STEP, 1, 0): calls}


def chain_workflow(name: str, roles: Sequence[str]) -> WorkflowSpec:
    """One step per role, each after the one before."""
    steps: dict[str, StepSpec] = {}
    before: tuple[str, ...] = ()
    for number, role in enumerate(roles, start=1):
        step = f"s{number}"
        steps[step] = StepSpec(step, "", role=role, after=before)
        before = (step,)
    return WorkflowSpec(name, steps)
