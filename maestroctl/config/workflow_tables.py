"""The tables of a workflow file: one `Key` per thing a user may write.

See also: `config.workflow` (reads them), `config.workflow_checks` (what steps say of each other).
"""

from __future__ import annotations

import re
from typing import Any

from maestroctl.config.composed_kinds import JSON_TABLE, URL
from maestroctl.config.kinds import (
    TEXT,
    Kind,
    Mismatch,
    did_you_mean,
    integer,
    name_of,
    names_of,
    one_of,
    seconds,
)
from maestroctl.config.tables import Key, Table
from maestroctl.config.tool_schema import check_tool_schema
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import RepeatSpec, StepSpec, ToolSpec, WorkflowSpec

KNOWN_ROLES = (
    "analyst",
    "assistant",
    "coder",
    "critic",
    "editor",
    "judge",
    "planner",
    "researcher",
    "reviewer",
    "router",
    "solver",
    "summarizer",
    "supervisor",
    "tester",
    "translator",
    "worker",
    "writer",
)
"""Roles that need no declaration. Predictions are learned per role, so a misspelt one costs."""

RESERVED_OPTIONS = (
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "priority",
    "prompt",
    "stream",
    "stream_options",
    "tools",
)
"""Request fields that maestroctl sets itself."""

# --- kinds of this file alone -------------------------------------------------------------------

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z]\w*", re.ASCII)


def _tool_name(value: Any) -> str:
    if not isinstance(value, str) or _TOOL_NAME.fullmatch(value) is None:
        raise Mismatch
    return value


def _function(value: Any) -> str:
    if not isinstance(value, str) or _FUNCTION.fullmatch(value) is None:
        raise Mismatch(hint='for instance "mytools:search"')
    return value


def _parameters(value: Any) -> Any:
    check_tool_schema(JSON_TABLE.parse(value))
    return value


def _options(value: Any) -> Any:
    JSON_TABLE.parse(value)
    for name in value:
        if name in RESERVED_OPTIONS:
            hint = "max_tokens is a key of the step" if name.startswith("max_") else None
            raise Mismatch(f"{name!r} is set by maestroctl", hint=hint)
    return value


def _back_edge(value: Any) -> Any:
    if not isinstance(value, dict):
        raise Mismatch(hint='repeat = { back_to = "STEP", until = "\'OK\' in output" }')
    return value


TOOL_NAME = Kind("a name of letters, digits, _ and -, at most 64", _tool_name)
FUNCTION = Kind('"module:function"', _function)
PARAMETERS = Kind("a JSON schema of an object", _parameters)
OPTIONS = Kind("a table of request fields", _options)
REPEAT_TABLE = Kind("a table with back_to and until", _back_edge)
ROLE_NAMES = names_of("role")

# --- tables -------------------------------------------------------------------------------------

WORKFLOW = Table(
    "[workflow]",
    "The workflow as a whole.",
    (
        Key("name", name_of("workflow"), "Its name.", absent="the name of the file"),
        Key(
            "class",
            one_of(ServiceClass),
            "`interactive`: somebody waits for it. `batch`: it takes what is left.",
            field="service_class",
        ),
        Key(
            "deadline_s",
            seconds(0.001),
            "When the whole run should have ended, from its submission.",
            absent="none",
        ),
        Key(
            "output",
            name_of("step"),
            "The step whose output is the result.",
            absent="the last step of the file",
        ),
        Key(
            "roles",
            ROLE_NAMES,
            "Roles of this workflow beside the well-known ones.",
            absent="none",
        ),
    ),
    WorkflowSpec,
)

TOOL = Table(
    "[[tool]]",
    "Something a model may call: a Python function or an HTTP endpoint. `[tools] allow` of the"
    " fleet must name it.",
    (
        Key("name", TOOL_NAME, "What the model calls.", required=True),
        Key("description", TEXT, "What the model is told about it.", absent="nothing"),
        Key(
            "parameters",
            PARAMETERS,
            "JSON schema of its arguments; they are checked before every call.",
            absent="any object",
        ),
        Key("function", FUNCTION, "Python callable, plain or `async`.", absent="none"),
        Key(
            "url",
            URL,
            "HTTP endpoint; the arguments are sent as JSON by POST, with an `Idempotency-Key`.",
            absent="none",
        ),
        Key("timeout_s", seconds(0.001, 86400), "Longest time of one call."),
    ),
    ToolSpec,
)

STEP = Table(
    "[[step]]",
    "One step: an LLM call, or several with tools, a loop or a fan-out. It starts when every step"
    " in `after` has ended.",
    (
        Key("name", name_of("step"), "Its name.", required=True),
        Key(
            "role",
            name_of("role"),
            "What it does; one of the well-known roles or of `roles` in `[workflow]`.",
        ),
        Key(
            "models",
            names_of("model", least=1),
            "Candidates: models, aliases or groups. The router picks one for the job.",
            absent='["auto"]: every model',
        ),
        Key("system", TEXT, "Template of the system message.", absent="none"),
        Key("prompt", TEXT, "Template of the user message.", required=True),
        Key("after", names_of("step"), "Steps that must have ended.", absent="it starts at once"),
        Key("tools", names_of("tool"), "Tools the model may call.", absent="none"),
        Key(
            "for_each",
            TEXT,
            "Expression that gives a list: the step runs once per element, as `item`.",
            absent="it runs once",
        ),
        Key("repeat", REPEAT_TABLE, "Makes it the end of a loop.", absent="no loop"),
        Key(
            "max_tokens",
            integer(1, 10_000_000),
            "Longest answer, in tokens.",
            absent="what the model can hold",
        ),
        Key(
            "max_tool_rounds",
            integer(0, 100),
            "LLM calls that may follow tool results; in the last one tools are withheld.",
        ),
        Key(
            "options",
            OPTIONS,
            "Further fields of the request, for instance `temperature`.",
            absent="none",
        ),
    ),
    StepSpec,
)

REPEAT = Table(
    "[step.repeat]",
    "After the step, go back to an earlier one unless a condition holds.",
    (
        Key(
            "back_to",
            name_of("step"),
            "The step itself, or one before it: it and all between run again.",
            required=True,
        ),
        Key("until", TEXT, "Condition that ends the loop.", required=True),
        Key(
            "at_most",
            integer(1, 1000),
            "How often the step runs at most, the first time included.",
        ),
    ),
    RepeatSpec,
)

ALL_TABLES = (WORKFLOW, TOOL, STEP, REPEAT)
TOP_LEVEL = ("workflow", "variables", "tool", "step")


def unknown_role_hint(role: str, declared: tuple[str, ...]) -> str:
    """What to try for a role nobody declared."""
    close = did_you_mean(role, [*KNOWN_ROLES, *declared])
    own = f"or add roles = [{role!r}] to [workflow]".replace("'", '"')
    if close is None or not close.startswith("did"):
        return f"well-known: {', '.join(KNOWN_ROLES)}; {own}"
    return f"{close} {own}"
