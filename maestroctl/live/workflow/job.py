"""One job as the runner knows it: what it is, what its steps have said, what templates see.

The core knows which step runs when; it never sees text. Text lives here while the job runs, and in
the store, from which a job is made again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from maestroctl.config.expressions import ExpressionFailed, condition
from maestroctl.config.graph import depths
from maestroctl.config.step_view import StepView
from maestroctl.config.templates import list_template, prompt_template
from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import StepSpec, ToolSpec, WorkflowSpec
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.workflow.tools import ToolSet
from maestroctl.scheduler.events import StepRef
from maestroctl.store.rows import StepResultRow

Scope = dict[str, Any]


class _Steps(Mapping[str, StepView]):
    """The steps as a template sees them; a view is made when it is looked at."""

    def __init__(self, job: JobRun, own: StepView | None = None, name: str = "") -> None:
        self._job = job
        self._own = own
        self._name = name

    def __getitem__(self, name: str) -> StepView:
        if self._own is not None and name == self._name:
            return self._own
        if name not in self._job.workflow.steps:
            raise KeyError(name)
        return self._job.view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._job.workflow.steps)

    def __len__(self) -> int:
        return len(self._job.workflow.steps)


class StepPlan:
    """A declared step with everything compiled that it renders."""

    def __init__(self, spec: StepSpec, tools: tuple[ToolSpec, ...]) -> None:
        self.spec = spec
        self.tools = tools
        self.prompt = prompt_template(spec.prompt)
        self.system = prompt_template(spec.system) if spec.system else None
        self.for_each = list_template(spec.for_each) if spec.for_each else None
        self.until = condition(spec.repeat.until) if spec.repeat else None


class JobRun:
    """A job that runs. Owner: the runner.

    Args:
        request: what was asked for; checked.
        deadline_s: absolute, in the runner's clock; None = none.
        finished: results from before a restart.
        tools: found and allowed.
    """

    def __init__(
        self,
        job_id: JobId,
        request: JobRequest,
        deadline_s: float | None,
        finished: Iterable[StepResultRow],
        tools: ToolSet,
    ) -> None:
        self.job_id = job_id
        self.workflow: WorkflowSpec = request.workflow
        self.tools = tools
        self.deadline_s = deadline_s
        self.service_class: ServiceClass = request.service_class or request.workflow.service_class
        self.candidates: dict[str, tuple[ModelName, ...]] = {}
        """Models of each step, resolved once."""
        self.num_stages = 0
        """LLM calls so far: the position of the next one."""
        self.calls_of_role: dict[str, int] = {}
        self._input = request.input
        self._variables = {**request.workflow.variables, **request.variables}
        self._plans: dict[str, StepPlan] = {}
        self._outputs: dict[tuple[str, int], dict[int, str]] = {}
        self._widths: dict[tuple[str, int], int] = {}
        """How many items each visit has; decided before any of them runs."""
        self._newest: dict[str, int] = {}
        """Highest visit of each step in `_widths`."""
        self._items: dict[tuple[str, int], list[Any]] = {}
        for row in finished:
            self.remember(StepRef(row.step, row.visit, row.item), row.output, row.num_items)
            self.count_stage(self.workflow.steps[row.step].role)

    def plan(self, step: str) -> StepPlan:
        """The compiled step."""
        if step not in self._plans:
            spec = self.workflow.steps[step]
            tools = tuple(self.workflow.tools[name] for name in spec.tools)
            self._plans[step] = StepPlan(spec, tools)
        return self._plans[step]

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """Longest way of steps before each step."""
        return depths({name: step.after for name, step in self.workflow.steps.items()})

    def count_stage(self, role: str) -> tuple[int, int]:
        """Register one more LLM call; its position in the job and among those of its role."""
        position, invocation = self.num_stages, self.calls_of_role.get(role, 0)
        self.num_stages += 1
        self.calls_of_role[role] = invocation + 1
        return position, invocation

    # --- results ---

    def remember(self, ref: StepRef, output: str, num_items: int) -> None:
        """Keep the output of a finished run of a step."""
        self._outputs.setdefault((ref.step, ref.visit), {})[ref.item] = output
        self._set_width(ref.step, ref.visit, num_items)

    def output(self) -> str:
        """The job's output: that of its output step, as far as it has run."""
        step = self.workflow.output or list(self.workflow.steps)[-1]
        return self.view(step).output

    def view(self, step: str) -> StepView:
        """The newest visit of `step` whose runs have all ended; empty before there is one."""
        for visit in range(self._newest.get(step, 0), 0, -1):
            outputs = self._outputs.get((step, visit), {})
            if len(outputs) == self._widths.get((step, visit)):
                return StepView(step, list(_in_order(outputs)))
        return StepView(step)

    def _set_width(self, step: str, visit: int, num_items: int) -> None:
        self._widths[(step, visit)] = num_items
        self._newest[step] = max(visit, self._newest.get(step, 0))

    # --- rendering ---

    def items(self, step: str, visit: int) -> list[Any]:
        """Elements a step runs for; one None without `for_each`. The same list every time.

        Raises:
            TemplateMistake: `for_each` gave no list.
        """
        key = (step, visit)
        if key not in self._items:
            plan = self.plan(step)
            scope = self._scope(step, visit)
            self._items[key] = [None] if plan.for_each is None else plan.for_each.items(scope)
            self._set_width(step, visit, len(self._items[key]))
        return self._items[key]

    def render(self, ref: StepRef) -> tuple[str | None, str]:
        """System text and prompt of one run of a step.

        Raises:
            TemplateMistake: a value is missing or a limit was reached.
        """
        plan = self.plan(ref.step)
        scope = self._item_scope(ref)
        system = plan.system.render(scope) if plan.system is not None else None
        return system, plan.prompt.render(scope)

    def wants_repeat(self, ref: StepRef, output: str) -> tuple[bool, str]:
        """Whether the loop goes on after this run, and what was wrong with the condition.

        A condition that cannot be evaluated (the output was to be JSON and is not) does not hold:
        the next round may do better, and `at_most` ends the loop anyway.
        """
        plan = self.plan(ref.step)
        repeat = plan.spec.repeat
        if repeat is None or plan.until is None:
            return False, ""
        scope = self._item_scope(ref)
        scope["output"] = output
        scope["steps"] = _Steps(self, StepView(ref.step, [output]), ref.step)
        problem = ""
        try:
            holds = plan.until.holds(scope)
        except ExpressionFailed as exc:
            holds, problem = False, str(exc)
        return not holds and ref.visit < repeat.at_most, problem

    def _item_scope(self, ref: StepRef) -> Scope:
        scope = self._scope(ref.step, ref.visit)
        former = self._outputs.get((ref.step, ref.visit - 1), {})
        scope["previous"] = former.get(ref.item, "")
        if self.plan(ref.step).for_each is not None:
            scope["item"] = self.items(ref.step, ref.visit)[ref.item]
            scope["index"] = ref.item
        return scope

    def _scope(self, step: str, visit: int) -> Scope:
        scope: Scope = {
            "steps": _Steps(self),
            "vars": self._variables,
            "visit": visit,
            "previous": "\n\n".join(_in_order(self._outputs.get((step, visit - 1), {}))),
        }
        if self._input is not None:
            scope["input"] = self._input
        return scope


def _in_order(outputs: Mapping[int, str]) -> Iterator[str]:
    return (outputs[item] for item in sorted(outputs))
