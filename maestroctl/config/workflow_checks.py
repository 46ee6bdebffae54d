"""What steps may say of each other: names, cycles, loops, and what templates may read.

A template that reads what is not there would fail in the middle of a run, after tokens were spent.
Here it fails before anything starts, at the line of the template.

See also: `config.graph` (which steps are readable), `config.templates` and `config.expressions`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from maestroctl.config.expressions import Condition, condition
from maestroctl.config.graph import Readable, add_loop_ends, all_ancestors, find_cycle, find_loops
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.source import Source
from maestroctl.config.step_view import STEP_FIELDS
from maestroctl.config.template_syntax import References
from maestroctl.config.templates import ListTemplate, PromptTemplate, list_template, prompt_template
from maestroctl.config.toml_lines import Path
from maestroctl.domain.workflow import StepSpec, ToolSpec

Placed = list[tuple[Path, StepSpec]]
"""Steps with the path of their table."""


def check_steps(
    source: Source,
    steps: Placed,
    tools: list[tuple[Path, ToolSpec]],
    variables: Mapping[str, Any],
) -> None:
    """Report everything that is wrong between steps. Mistakes are added to `source`."""
    names = [step.name for _, step in steps]
    tool_names = [tool.name for _, tool in tools] + _unread_names(source, "tool")
    for path, step in steps:
        _check_edges(source, path, step, names)
        _check_tool_names(source, path, step, tool_names)
    after = {step.name: tuple(e for e in step.after if e in names) for _, step in steps}
    if not _check_cycle(source, steps, after):
        return
    ancestors = all_ancestors(after)
    for path, step in steps:
        _check_repeat(source, path, step, ancestors)
    repeats = {step.name: step.repeat.back_to for _, step in steps if step.repeat is not None}
    loops = find_loops(after, repeats)
    waits = add_loop_ends(after, loops)
    if not _check_cycle(source, steps, waits, "these loops wait for each other's end"):
        return
    scopes = _Scopes(source, after, Readable(loops, waits), variables)
    for path, step in steps:
        scopes.check(path, step)


def _unread_names(source: Source, table: str) -> list[str]:
    """Names of tables that could not be built: referring to them is not a second mistake."""
    names = [source.at((*path, "name")) for path in source.tables(table)]
    return [name for name in names if isinstance(name, str)]


# --- edges --------------------------------------------------------------------------------------


def _check_edges(source: Source, path: Path, step: StepSpec, names: Collection[str]) -> None:
    for index, earlier in enumerate(step.after):
        place = (*path, "after", index)
        if earlier == step.name:
            source.problem(
                place,
                f"step {step.name!r} waits for itself",
                hint="to run a step again, give it repeat",
            )
        elif earlier not in names:
            source.problem(place, f"unknown step {earlier!r}", hint=did_you_mean(earlier, names))


def _check_tool_names(source: Source, path: Path, step: StepSpec, tools: Collection[str]) -> None:
    for index, tool in enumerate(step.tools):
        if tool not in tools:
            hint = did_you_mean(tool, tools) or "declare it in a [[tool]] table"
            source.problem((*path, "tools", index), f"unknown tool {tool!r}", hint=hint)


def _check_cycle(
    source: Source,
    steps: Placed,
    after: Mapping[str, tuple[str, ...]],
    what: str = "these steps wait for each other",
) -> bool:
    """False when steps wait for each other in a circle; then nothing can be said of ancestors."""
    cycle = find_cycle(
        {name: tuple(e for e in edges if e != name) for name, edges in after.items()}
    )
    if cycle:
        path = next(path for path, step in steps if step.name == cycle[0])
        source.problem(
            (*path, "after"),
            f"{what}: " + " -> ".join(cycle),
            hint="take one of them out of an after; for a loop use repeat",
        )
    return not cycle and all(name not in edges for name, edges in after.items())


def _check_repeat(
    source: Source, path: Path, step: StepSpec, ancestors: Mapping[str, frozenset[str]]
) -> None:
    if step.repeat is None:
        return
    back_to = step.repeat.back_to
    reachable = ancestors[step.name] | {step.name}
    if back_to not in reachable:
        known = back_to in ancestors
        message = (
            f"step {back_to!r} does not come before {step.name!r}"
            if known
            else f"unknown step {back_to!r}"
        )
        hint = "go back to " + " or ".join(repr(name) for name in sorted(reachable))
        if not known:
            hint = did_you_mean(back_to, sorted(reachable)) or hint
        source.problem((*path, "repeat", "back_to"), message, hint=hint)


# --- what templates read ------------------------------------------------------------------------


class _Scopes:
    """Knows for every step what its templates may read."""

    def __init__(
        self,
        source: Source,
        after: Mapping[str, tuple[str, ...]],
        readable: Readable,
        variables: Mapping[str, Any],
    ) -> None:
        self._source = source
        self._after = after
        self._readable = readable
        self._variables = variables

    def check(self, path: Path, step: StepSpec) -> None:
        """Compile what the step has to render, and check what it reads."""
        base = {"input", "steps", "vars", "visit", "previous"}
        inner = base | ({"item", "index"} if step.for_each is not None else set())
        self._one((*path, "prompt"), step, step.prompt, inner, prompt_template)
        if step.system is not None:
            self._one((*path, "system"), step, step.system, inner, prompt_template)
        if step.for_each is not None:
            self._one((*path, "for_each"), step, step.for_each, base, list_template)
        if step.repeat is not None:
            place = (*path, "repeat", "until")
            self._one(place, step, step.repeat.until, inner | {"output"}, condition, ends=True)

    def _one(
        self,
        path: Path,
        step: StepSpec,
        text: str,
        names: Collection[str],
        compile_: Callable[[str], PromptTemplate | ListTemplate | Condition],
        *,
        ends: bool = False,
    ) -> None:
        if not text.strip():
            return  # reported when the table was read
        try:
            references = compile_(text).references
        except ValueError as exc:
            self._source.problem(path, str(exc), hint=getattr(exc, "hint", None))
            return
        self._check_names(path, step, references, names)
        self._check_variables(path, references)
        self._check_steps(path, step, references, ends=ends)

    def _check_names(
        self, path: Path, step: StepSpec, references: References, names: Collection[str]
    ) -> None:
        for name in sorted(references.names - set(names)):
            hint = did_you_mean(name, sorted(names))
            if name in ("item", "index") and step.for_each is None:
                hint = "only a step with for_each has one"
            elif name in self._variables:
                hint = f"did you mean vars.{name}?"
            elif name in self._after:
                hint = f"did you mean steps.{name}.output?"
            self._source.problem(path, f"{name!r} is not set", hint=hint, found=name)

    def _check_variables(self, path: Path, references: References) -> None:
        for name in sorted(references.variables - set(self._variables)):
            hint = did_you_mean(name, sorted(self._variables)) or "declare it under [variables]"
            self._source.problem(path, f"unknown variable {name!r}", hint=hint, found=name)

    def _check_steps(
        self, path: Path, step: StepSpec, references: References, *, ends: bool
    ) -> None:
        readable = self._readable.by(step.name) | ({step.name} if ends else set())
        for name, field in sorted(references.steps, key=str):
            if name not in self._after:
                hint = _dashed_hint(name, self._after) or did_you_mean(name, sorted(self._after))
                self._source.problem(path, f"unknown step {name!r}", hint=hint, found=name)
            elif name == step.name and name not in readable:
                self._source.problem(
                    path, f"step {name!r} reads itself", hint="only a step in a loop can"
                )
            elif name not in readable:
                self._source.problem(
                    path,
                    f"step {name!r} has not ended when {step.name!r} starts",
                    hint=f"add {name!r} to after",
                )
            elif field is not None and field not in STEP_FIELDS:
                self._source.problem(
                    path,
                    f"a step has no {field!r}",
                    hint=did_you_mean(field, STEP_FIELDS),
                    found=field,
                )


def _dashed_hint(name: str, names: Collection[str]) -> str | None:
    """``steps.my-step`` reads as a subtraction; the way out is not obvious."""
    dashed = [known for known in names if known.startswith(f"{name}-")]
    return f'write steps["{dashed[0]}"]' if dashed else None
