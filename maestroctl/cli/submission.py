"""From the words of ``submit`` to the body of ``POST /api/jobs``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from maestroctl.cli.runtime import read_text_argument
from maestroctl.config.kinds import did_you_mean
from maestroctl.config.workflow import load_workflow, needs_input
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import parse_seconds
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import ConfigError, ConfigErrors

_ENVELOPE = {"input", "vars", "id"}


@dataclass(frozen=True, slots=True)
class Submission:
    """One run to ask for.

    Attributes:
        label: what the user calls it, for a batch; None = its position.
    """

    workflow: WorkflowSpec
    input: Any = None
    variables: dict[str, Any] = field(default_factory=dict)
    service_class: ServiceClass | None = None
    deadline_s: float | None = None
    label: str | None = None

    def body(self) -> dict[str, Any]:
        """As the gateway takes it."""
        document: dict[str, Any] = {
            "workflow": msgspec.to_builtins(self.workflow),
            "variables": self.variables,
        }
        optional = {
            "input": self.input,
            "class": self.service_class.value if self.service_class else None,
            "deadline_s": self.deadline_s,
        }
        return document | {key: value for key, value in optional.items() if value is not None}


def read_submission(
    file: Path,
    *,
    input_text: str | None,
    assignments: Sequence[str],
    service_class: ServiceClass | None,
    deadline: str | None,
) -> Submission:
    """Read the workflow and the options, and check them before anything is sent.

    Raises:
        ConfigErrors: mistakes of the workflow file.
        ConfigError: an option is wrong.
    """
    workflow = load_workflow(file)
    return Submission(
        workflow,
        input=read_text_argument(input_text) if input_text is not None else None,
        variables=dict(_parse_variable(text, workflow) for text in assignments),
        service_class=service_class,
        deadline_s=_parse_deadline(deadline),
    )


def check_input(submission: Submission, file: Path) -> None:
    """Refuse a run that would fail for want of an input.

    Raises:
        ConfigError: the workflow reads an input and there is none.
    """
    if submission.input is None and needs_input(submission.workflow):
        raise ConfigError(
            f"workflow {submission.workflow.name!r} needs an input and got none",
            file=str(file),
            hint="--input TEXT, --input @FILE or --input - (standard input)",
        )


def read_batch(file: str, base: Submission) -> list[Submission]:
    """One run per line of a JSONL file.

    A line is the input itself, any JSON value; or ``{"input": …}`` with, if wanted, ``"vars"``
    (variables of this run) and ``"id"`` (comes back in its result). Empty lines are skipped.

    Raises:
        ConfigErrors: every line that is wrong.
    """
    text = read_text_argument("-" if file == "-" else f"@{file}")
    runs: list[Submission] = []
    errors: list[ConfigError] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            runs.append(_read_line(line, base))
        except ValueError as exc:
            errors.append(ConfigError(f"not JSON: {exc}", file=file, line=number))
        except ConfigError as exc:
            errors.append(ConfigError(exc.message, file=file, line=number, hint=exc.hint))
    if not runs and not errors:
        errors.append(ConfigError("there is no line in it", file=file))
    if errors:
        raise ConfigErrors(errors)
    return runs


def _read_line(line: str, base: Submission) -> Submission:
    value = json.loads(line)
    if not (isinstance(value, dict) and "input" in value):
        return replace(base, input=value)
    unknown = sorted(value.keys() - _ENVELOPE)
    for name in unknown:
        near = get_close_matches(name.lower(), ("vars", "id"), n=1, cutoff=0.5)
        if near:
            raise ConfigError(
                f"{name!r} beside `input` looks like a slip of {near[0]!r}",
                hint='an input that has such a key itself is written {"input": {…}}',
            )
    if unknown:
        return replace(base, input=value)
    variables = value.get("vars", {})
    if not isinstance(variables, dict):
        raise ConfigError("vars is not an object", hint='{"input": …, "vars": {"NAME": VALUE}}')
    for name in variables:
        _check_variable(name, base.workflow)
    label = value.get("id")
    return replace(
        base,
        input=value["input"],
        variables={**base.variables, **variables},
        label=None if label is None else str(label),
    )


def _parse_variable(text: str, workflow: WorkflowSpec) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(
            f"--var {text!r} is not NAME=VALUE", hint="for instance --var language=de"
        )
    _check_variable(name, workflow)
    if value.startswith("@"):
        value = read_text_argument(value)
    if isinstance(workflow.variables[name], str):
        return name, value
    try:
        return name, json.loads(value)
    except ValueError as exc:
        default = json.dumps(workflow.variables[name])
        raise ConfigError(
            f"--var {name}: {value!r} is not JSON, and its default {default} is no text",
            hint=f"for instance --var {name}={default}",
        ) from exc


def _check_variable(name: str, workflow: WorkflowSpec) -> None:
    if name not in workflow.variables:
        hint = did_you_mean(name, list(workflow.variables))
        raise ConfigError(
            f"workflow {workflow.name!r} has no variable {name!r}",
            hint=hint or "declare it under [variables] of the workflow",
        )


def _parse_deadline(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError as exc:
        raise ConfigError(f"--deadline: {exc}") from exc
    if seconds <= 0:
        raise ConfigError("--deadline must be more than 0 s")
    return seconds
