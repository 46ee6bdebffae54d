"""A workflow file to a `WorkflowSpec`: read, fill in defaults, check what steps say of each other.

1. the document is parsed (a file, text of a request, or the plain values of a stored job);
2. every table is read by its schema;
3. templates and conditions are compiled, to see that they can be;
4. names, cycles, loops and what templates read are checked (`config.workflow_checks`);
5. with a fleet: models exist there, tools are allowed there;
6. all mistakes are raised together, or the spec is built.

See also: `config.workflow_tables` (keys), `live.workflow.runner` (runs the spec).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from maestroctl.config import workflow_tables as schema
from maestroctl.config.composed_kinds import check_json
from maestroctl.config.expressions import condition
from maestroctl.config.file_kind import FileKind, refuse_other_kind
from maestroctl.config.kinds import Mismatch, did_you_mean
from maestroctl.config.source import STARTER_HINT, Source, read_text
from maestroctl.config.templates import list_template, prompt_template
from maestroctl.config.toml_lines import Path
from maestroctl.config.workflow_checks import check_steps
from maestroctl.config.workflow_names import check_against_fleet
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.workflow import RepeatSpec, StepSpec, ToolSpec, WorkflowSpec
from maestroctl.errors import ConfigError, ConfigErrors

MAX_STEPS = 200
MAX_LOOPS = 32
MAX_TEXT = 512 << 10
"""Characters of all templates of a workflow: compiling them takes time on the event loop."""
_VARIABLE_FORM = "a name of letters, digits and underscores that starts with a letter"


def load_workflow(path: FilePath | str, fleet: FleetSpec | None = None) -> WorkflowSpec:
    """Read a workflow file.

    Args:
        path: the file.
        fleet: checks models and tools against it; None = they are not checked.

    Raises:
        ConfigErrors: every mistake of the file, in the order of its lines.
    """
    try:
        text = read_text(FilePath(path), missing_hint=STARTER_HINT)
    except ConfigError as exc:
        raise ConfigErrors([exc]) from exc
    return parse_workflow(text, file=str(path), fleet=fleet)


def parse_workflow(
    text: str, *, file: str = "workflow.toml", fleet: FleetSpec | None = None
) -> WorkflowSpec:
    """The same for text that is no file.

    Raises:
        ConfigErrors: every mistake of the text.
    """
    try:
        source = Source.parse(text, file)
        refuse_other_kind(source.values, FileKind.WORKFLOW, file)
    except ConfigError as exc:
        raise ConfigErrors([exc]) from exc
    return _build(source, FilePath(file).stem, fleet)


def workflow_from_document(
    document: Mapping[str, Any], *, fleet: FleetSpec | None = None
) -> WorkflowSpec:
    """The spec of plain values, as `workflow_document` or a JSON request gives them.

    Raises:
        ConfigErrors: every mistake, without lines.
    """
    return _build(Source(document, file=None, text=None), "workflow", fleet)


def workflow_document(spec: WorkflowSpec) -> dict[str, Any]:
    """Plain values that give `spec` back; JSON and TOML can hold them."""
    workflow: dict[str, Any] = {"name": spec.name, "class": str(spec.service_class)}
    if spec.deadline_s is not None:
        workflow["deadline_s"] = spec.deadline_s
    if spec.output is not None:
        workflow["output"] = spec.output
    own_roles = {step.role for step in spec.steps.values()} - set(schema.KNOWN_ROLES)
    if own_roles:
        workflow["roles"] = sorted(own_roles)
    document: dict[str, Any] = {"workflow": workflow}
    if spec.variables:
        document["variables"] = dict(spec.variables)
    if spec.tools:
        document["tool"] = [_tool_document(tool) for tool in spec.tools.values()]
    document["step"] = [_step_document(step) for step in spec.steps.values()]
    return document


def needs_input(spec: WorkflowSpec) -> bool:
    """Whether a run of a checked workflow must be given an input."""
    references = []
    for step in spec.steps.values():
        texts = [step.prompt, step.system]
        references += [prompt_template(text).references for text in texts if text]
        if step.for_each is not None:
            references.append(list_template(step.for_each).references)
        if step.repeat is not None:
            references.append(condition(step.repeat.until).references)
    reads = any("input" in found.names for found in references)
    return reads and not any("input" in found.guarded for found in references)


def _tool_document(tool: ToolSpec) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": tool.name,
        "parameters": dict(tool.parameters),
        "timeout_s": tool.timeout_s,
    }
    optional = {"description": tool.description, "function": tool.function, "url": tool.url}
    return document | {key: value for key, value in optional.items() if value}


def _step_document(step: StepSpec) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": step.name,
        "role": step.role,
        "prompt": step.prompt,
        "max_tool_rounds": step.max_tool_rounds,
    }
    optional: dict[str, Any] = {
        "system": step.system,
        "models": list(step.models),
        "after": list(step.after),
        "tools": list(step.tools),
        "for_each": step.for_each,
        "max_tokens": step.max_tokens,
        "options": dict(step.options),
    }
    if step.repeat is not None:
        optional["repeat"] = {
            "back_to": step.repeat.back_to,
            "until": step.repeat.until,
            "at_most": step.repeat.at_most,
        }
    empty: tuple[Any, ...] = (None, "", [], {})
    return document | {key: value for key, value in optional.items() if value not in empty}


# --- reading ------------------------------------------------------------------------------------


def _build(source: Source, default_name: str, fleet: FleetSpec | None) -> WorkflowSpec:
    source.known_keys((), schema.TOP_LEVEL)
    is_table = source.is_table(("workflow",))
    fields = source.read(schema.WORKFLOW, ("workflow",)) if is_table else {}
    declared_roles = fields.pop("roles", ())
    fields.setdefault("name", default_name)
    variables = _variables(source)
    tools = _tools(source)
    steps = _steps(source, declared_roles)
    check_steps(source, steps, tools, variables)
    _check_output(source, fields.get("output"), steps)
    if fleet is not None:
        check_against_fleet(source, steps, tools, fleet)
    source.finish()
    spec = source.build(
        WorkflowSpec,
        ("workflow",),
        {
            **fields,
            "steps": {step.name: step for _, step in steps},
            "tools": {tool.name: tool for _, tool in tools},
            "variables": variables,
        },
    )
    source.finish()
    assert spec is not None, "finish would have raised"
    return spec


def _variables(source: Source) -> dict[str, Any]:
    if not source.is_table(("variables",)):
        return {}
    variables: dict[str, Any] = {}
    for name, value in source.values["variables"].items():
        path: Path = ("variables", name)
        if not name.isidentifier() or name.startswith("_"):
            source.problem(path, f"expected {_VARIABLE_FORM}, found {name!r}")
        try:
            check_json(value)
        except (Mismatch, RecursionError) as exc:
            hint = exc.hint if isinstance(exc, Mismatch) else None
            source.problem(path, str(exc), hint=hint)
        variables[name] = value
    return variables


def _tools(source: Source) -> list[tuple[Path, ToolSpec]]:
    tools: list[tuple[Path, ToolSpec]] = []
    for path in source.tables("tool"):
        fields = source.read(schema.TOOL, path)
        raw = source.at(path)
        if "function" in raw and "url" in raw:
            source.problem((*path, "url"), "a tool is a function or a url, not both")
        elif "function" not in raw and "url" not in raw:
            source.problem(path, "function or url is missing", hint='function = "module:function"')
        tool = source.build(ToolSpec, path, fields)
        if tool is not None:
            tools.append((path, tool))
    _check_unique(source, "tool", [(path, tool.name) for path, tool in tools])
    return tools


def _steps(source: Source, declared_roles: tuple[str, ...]) -> list[tuple[Path, StepSpec]]:
    steps: list[tuple[Path, StepSpec]] = []
    paths = source.tables("step")
    if not paths and source.at(("step",)) is None:
        source.problem((), "no step is declared", hint="add [[step]] with name and prompt")
    if _is_too_large(source, paths):
        return steps
    for path in paths:
        fields = source.read(schema.STEP, path)
        role = fields.get("role", "assistant")
        if role not in schema.KNOWN_ROLES and role not in declared_roles:
            hint = schema.unknown_role_hint(role, declared_roles)
            source.problem((*path, "role"), f"unknown role {role!r}", hint=hint, found=role)
        if "repeat" in fields:
            fields["repeat"] = _repeat(source, (*path, "repeat"))
        # Built even when a field is missing, so that other steps can still be checked against it.
        if "name" in fields:
            steps.append((path, StepSpec(**{"prompt": "", **fields})))
    _check_unique(source, "step", [(path, step.name) for path, step in steps])
    return steps


def _is_too_large(source: Source, paths: list[Path]) -> bool:
    """Refuse what no person wrote, before any of it is compiled."""
    raw = [source.at(path) for path in paths]
    loops = sum("repeat" in step for step in raw)
    length = sum(
        len(step[key])
        for step in raw
        for key in ("prompt", "system", "for_each")
        if isinstance(step.get(key), str)
    )
    counts = (
        (len(raw), MAX_STEPS, "steps"),
        (loops, MAX_LOOPS, "loops"),
        (length, MAX_TEXT, "characters of templates"),
    )
    too_many = [(count, most, what) for count, most, what in counts if count > most]
    for count, most, what in too_many:
        source.problem(("step",), f"there are {count} {what}, at most {most}")
    return bool(too_many)


def _repeat(source: Source, path: Path) -> RepeatSpec | None:
    return source.build(RepeatSpec, path, source.read(schema.REPEAT, path))


def _check_unique(source: Source, kind: str, named: list[tuple[Path, str]]) -> None:
    first: dict[str, Path] = {}
    for path, name in named:
        if name in first:
            line = source.line(first[name])
            place = f" on line {line}" if line is not None else ""
            source.problem((*path, "name"), f"there is a {kind} {name!r} already{place}")
        first.setdefault(name, path)


def _check_output(source: Source, output: str | None, steps: list[tuple[Path, StepSpec]]) -> None:
    names = [step.name for _, step in steps]
    if output is not None and output not in names:
        hint = did_you_mean(output, names)
        source.problem(("workflow", "output"), f"unknown step {output!r}", hint=hint)
