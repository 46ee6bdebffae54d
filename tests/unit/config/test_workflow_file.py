"""Workflow files: what they mean, and every mistake with its key, line and hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.config import (
    load_fleet,
    load_workflow,
    parse_fleet,
    parse_workflow,
    workflow_document,
    workflow_from_document,
)
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import RepeatSpec, StepSpec, ToolSpec, WorkflowSpec
from maestroctl.errors import ConfigErrors

EVERYTHING = """
[workflow]
name = "code-review"
class = "interactive"
deadline_s = "1m"
output = "code"
roles = ["pm"]

[variables]
language = "Python"

[[tool]]
name = "search_repo"
description = "finds"
function = "mytools:search"
timeout_s = "5s"
[tool.parameters]
type = "object"
required = ["pattern"]
properties = { pattern = { type = "string" } }

[[tool]]
name = "ask"
url = "http://tools/ask"

[[step]]
name = "plan"
role = "pm"
models = ["qwen3-8b", "qwen3-1.7b"]
system = "You plan {{ vars.language }}."
prompt = "{{ input }}"

[[step]]
name = "code"
role = "coder"
after = ["plan"]
tools = ["search_repo", "ask"]
max_tool_rounds = 2
max_tokens = 100
options = { temperature = 0.2, stop = ["END"] }
prompt = "{{ steps.plan.output }}{{ steps.review.output }}"

[[step]]
name = "review"
role = "reviewer"
after = ["code"]
prompt = "{{ steps.code.output }}"
repeat = { back_to = "code", until = "'APPROVED' in output", at_most = 4 }

[[step]]
name = "research"
role = "worker"
after = ["plan"]
for_each = "{{ steps.plan.lines }}"
prompt = "{{ item }} {{ index }}"
"""

STEP = '[[step]]\nname = "a"\nprompt = "x"\n'


# --- what they mean -----------------------------------------------------------------------------


def test_every_key_arrives() -> None:
    spec = parse_workflow(EVERYTHING)
    assert spec.name == "code-review"
    assert spec.service_class is ServiceClass.INTERACTIVE
    assert (spec.deadline_s, spec.output) == (60.0, "code")
    assert list(spec.steps) == ["plan", "code", "review", "research"]
    assert spec.steps["plan"].models == ("qwen3-8b", "qwen3-1.7b")
    code = spec.steps["code"]
    assert (code.after, code.tools, code.max_tool_rounds) == (("plan",), ("search_repo", "ask"), 2)
    assert code.options == {"temperature": 0.2, "stop": ["END"]}
    assert spec.steps["review"].repeat == RepeatSpec("code", "'APPROVED' in output", 4)
    assert spec.steps["research"].for_each == "{{ steps.plan.lines }}"
    assert spec.tools["search_repo"].timeout_s == 5.0
    assert spec.tools["ask"].url == "http://tools/ask"
    assert spec.variables == {"language": "Python"}


def test_name_of_the_file_is_the_name_of_the_workflow(tmp_path: Path) -> None:
    path = tmp_path / "my-flow.toml"
    path.write_text(STEP)
    spec = load_workflow(path)
    assert spec.name == "my-flow"
    assert spec.service_class is ServiceClass.BATCH
    assert spec.steps["a"] == StepSpec("a", "x")


@pytest.mark.parametrize(
    "text",
    [
        # a loop of one step that reads what it said before
        '[[step]]\nname="a"\nprompt="{{ previous }}{{ steps.a.output }}"\n'
        'repeat={back_to="a", until="visit > 1"}',
        # what stands outside a loop and waits for its inside may read its end
        '[[step]]\nname="a"\nprompt="x"\n[[step]]\nname="b"\nafter=["a"]\nprompt="y"\n'
        'repeat={back_to="a", until="True"}\n'
        '[[step]]\nname="c"\nafter=["a"]\nprompt="{{ steps.b.output }}"',
        # a fan-out inside a loop
        '[[step]]\nname="a"\nfor_each="{{ [1, visit] }}"\nprompt="{{ item }}{{ previous }}"\n'
        '[[step]]\nname="b"\nafter=["a"]\nprompt="{{ steps.a.items[0] }}"\n'
        'repeat={back_to="a", until="len(steps.a.items) > 3"}',
        # a fan-out that is its own loop
        '[[step]]\nname="a"\nfor_each="{{ [1] }}"\nprompt="x"\n'
        'repeat={back_to="a", until="item in output"}',
        # a diamond
        '[[step]]\nname="a"\nprompt="x"\n[[step]]\nname="b"\nafter=["a"]\nprompt="x"\n'
        '[[step]]\nname="c"\nafter=["a"]\nprompt="x"\n'
        '[[step]]\nname="d"\nafter=["b","c"]\nprompt="{{ steps.a }}{{ steps.b }}{{ steps.c }}"',
        # names with dashes and dots
        '[[step]]\nname="my-step.1"\nprompt="x"\n'
        '[[step]]\nname="b"\nafter=["my-step.1"]\nprompt="{{ steps[\'my-step.1\'].output }}"',
    ],
    ids=["own loop", "outside a loop", "fan-out in loop", "fan-out loop", "diamond", "dashes"],
)
def test_shapes_that_are_fine(text: str) -> None:
    assert parse_workflow(text).steps


# --- mistakes -----------------------------------------------------------------------------------


def _loop(back_to: str = "a", until: str = "True", more: str = "") -> str:
    edge = f'repeat = {{ back_to = "{back_to}", until = "{until}"{more} }}\n'
    return STEP + '[[step]]\nname = "b"\nafter = ["a"]\nprompt = "y"\n' + edge


BAD = [
    # (text, key, line, part of the message, part of the hint)
    ("", None, None, "no step is declared", "[[step]]"),
    ("[[steps]]\n" + STEP, "steps", 1, "unknown table", "'step'"),
    ("step = 3", "step", 1, "each under [[step]]", None),
    ('[[step]]\nname = "a"', "step[0]", 1, "prompt is missing", None),
    ('[[step]]\nprompt = "a"', "step[0]", 1, "name is missing", None),
    ('[[step]]\nname = "a"\nprompt = ""', "step[0].prompt", 3, "it is empty", None),
    ('[[step]]\nname = "a"\nprompt = 5', "step[0].prompt", 3, "expected text", None),
    ('[[step]]\nname = "a b"\nprompt = "x"', "step[0].name", 2, "step name", None),
    (STEP + 'promt = "y"', "step[0].promt", 4, "unknown key", "'prompt'"),
    (STEP + STEP, "step[1].name", 5, "there is a step 'a' already on line 1", None),
    (STEP + 'role = "assistent"', "step[0].role", 4, "unknown role", "'assistant'"),
    (STEP + 'role = "wizard"', "step[0].role", 4, "unknown role", 'roles = ["wizard"]'),
    (STEP + 'models = "m"', "step[0].models", 4, "a list of", 'write ["m"]'),
    (STEP + "models = []", "step[0].models", 4, "it is empty", None),
    (STEP + "max_tokens = 0", "step[0].max_tokens", 4, "whole number", None),
    (STEP + "max_tokens = -5", "step[0].max_tokens", 4, "found -5", None),
    (STEP + "max_tool_rounds = 1000", "step[0].max_tool_rounds", 4, "from 0 to 100", None),
    (STEP + "options = { model = 'x' }", "step[0].options", 4, "set by maestroctl", None),
    (STEP + "options = { n = 2 }", "step[0].options", 4, "set by maestroctl", None),
    (STEP + "options = { max_tokens = 2 }", "step[0].options", 4, "set by", "key of the step"),
    (STEP + "options = { t = nan }", "step[0].options", 4, "no form in JSON", None),
    (STEP + "options = { t = 2024-01-01 }", "step[0].options", 4, "no form in JSON", "quotes"),
    (STEP + 'after = ["a"]', "step[0].after[0]", 4, "waits for itself", "repeat"),
    (STEP + 'after = ["b"]', "step[0].after[0]", 4, "unknown step 'b'", "known: a"),
    (
        STEP + 'after = ["c"]\n[[step]]\nname = "b"\nafter = ["a"]\nprompt = "x"\n'
        '[[step]]\nname = "c"\nafter = ["b"]\nprompt = "x"',
        "step[0].after", 4, "wait for each other: a -> b -> c -> a", "repeat",
    ),
    (STEP + 'tools = ["t"]', "step[0].tools[0]", 4, "unknown tool 't'", "[[tool]]"),
    # loops
    (_loop("c"), "step[1].repeat.back_to", 8, "unknown step 'c'", "a, b"),
    (
        _loop("c") + '[[step]]\nname = "c"\nprompt = "x"',
        "step[1].repeat.back_to", 8, "does not come before", "'a' or 'b'",
    ),
    (_loop(more=", at_most = 0"), "step[1].repeat.at_most", 8, "from 1 to 1000", None),
    (_loop(more=", x = 0"), "step[1].repeat.x", 8, "unknown key", None),
    (_loop(until=""), "step[1].repeat.until", 8, "it is empty", None),
    (_loop(until="output ="), "step[1].repeat.until", 8, "not a condition", None),
    (_loop(until="outptu"), "step[1].repeat.until", 8, "'outptu' is not set", "'output'"),
    (_loop(until="item > 1"), "step[1].repeat.until", 8, "'item' is not set", "for_each"),
    (_loop(until="open('x')"), "step[1].repeat.until", 8, "unknown function 'open'", None),
    (_loop(until="().__class__"), "step[1].repeat.until", 8, "'__class__'", None),
    (_loop(until="steps.z.output"), "step[1].repeat.until", 8, "unknown step 'z'", None),
    (STEP + "repeat = 3", "step[0].repeat", 4, "back_to and until", "repeat = {"),
    (STEP + 'repeat = { until = "True" }', "step[0].repeat", 4, "back_to is missing", None),
    (
        '[[step]]\nname="a"\nprompt="x"\n[[step]]\nname="b"\nprompt="x"\n'
        '[[step]]\nname="c"\nafter=["a","b"]\nprompt="x"\nrepeat={back_to="a",until="True"}\n'
        '[[step]]\nname="d"\nafter=["a","b"]\nprompt="x"\nrepeat={back_to="b",until="True"}',
        "step[2].after", 9, "wait for each other's end", None,
    ),
    # templates
    ('[[step]]\nname="a"\nprompt="{{"', "step[0].prompt", 3, "unexpected", None),
    ('[[step]]\nname="a"\nprompt="{{ inptu }}"', "step[0].prompt", 3, "not set", "'input'"),
    ('[[step]]\nname="a"\nprompt="{{ item }}"', "step[0].prompt", 3, "not set", "for_each"),
    ('[[step]]\nname="a"\nprompt="{{ output }}"', "step[0].prompt", 3, "not set", None),
    ('[[step]]\nname="a"\nprompt="{{ a }}"', "step[0].prompt", 3, "not set", "steps.a.output"),
    ('[[step]]\nname="a"\nprompt="{{ vars.x }}"', "step[0].prompt", 3, "unknown variable", "[var"),
    (
        '[[step]]\nname="a"\nprompt="{{ x }}"\n[variables]\nx = 1',
        "step[0].prompt", 3, "not set", "vars.x",
    ),
    (
        '[[step]]\nname="a"\nprompt="{{ steps.a.output }}"',
        "step[0].prompt", 3, "reads itself", "loop",
    ),
    (
        STEP + '[[step]]\nname="b"\nprompt="{{ steps.a.output }}"',
        "step[1].prompt", 6, "has not ended", "add 'a' to after",
    ),
    (
        STEP + '[[step]]\nname="b"\nafter=["a"]\nprompt="{{ steps.aa.output }}"',
        "step[1].prompt", 7, "unknown step 'aa'", "'a'",
    ),
    (
        STEP + '[[step]]\nname="b"\nafter=["a"]\nprompt="{{ steps.a.outptu }}"',
        "step[1].prompt", 7, "a step has no 'outptu'", "'output'",
    ),
    (
        '[[step]]\nname="a-b"\nprompt="x"\n'
        '[[step]]\nname="b"\nafter=["a-b"]\nprompt="{{ steps.a-b.output }}"',
        "step[1].prompt", 7, "", None,
    ),
    (STEP + 'system = "{{ input.__class__ }}"', "step[0].system", 4, "underscore", None),
    (STEP + 'for_each = "{{ item }}"', "step[0].for_each", 4, "'item' is not set", None),
    (STEP + 'for_each = "text"', "step[0].for_each", 4, "one expression", "steps.plan.lines"),
    # the workflow as a whole
    ('[workflow]\nname = "a b"\n' + STEP, "workflow.name", 2, "workflow name", None),
    ('[workflow]\nclass = "urgent"\n' + STEP, "workflow.class", 2, "one of", None),
    ("[workflow]\ndeadline_s = -1\n" + STEP, "workflow.deadline_s", 2, "negative", None),
    ("[workflow]\ndeadline_s = 0\n" + STEP, "workflow.deadline_s", 2, "must be from", None),
    ('[workflow]\noutput = "b"\n' + STEP, "workflow.output", 2, "unknown step 'b'", "a"),
    ("[variables]\na-b = 1\n" + STEP, "variables.a-b", 2, "expected a name", None),
    ("[variables]\na = inf\n" + STEP, "variables.a", 2, "no form in JSON", None),
    ("variables = 1\n" + STEP, "variables", 1, "expected a table", None),
    # tools
    ('[[tool]]\nname = "t"\n' + STEP, "tool[0]", 1, "function or url is missing", None),
    (
        '[[tool]]\nname = "t"\nfunction = "a:b"\nurl = "http://x"\n' + STEP,
        "tool[0].url", 4, "not both", None,
    ),
    ('[[tool]]\nname = "t t"\nfunction="a:b"\n' + STEP, "tool[0].name", 2, "at most 64", None),
    ('[[tool]]\nname = "t"\nfunction="os"\n' + STEP, "tool[0].function", 3, "module:", None),
    ('[[tool]]\nname="t"\nfunction="a:_b"\n' + STEP, "tool[0].function", 3, "module:", None),
    ('[[tool]]\nname="t"\nfunction="a:b.c"\n' + STEP, "tool[0].function", 3, "module:", None),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\n[[tool]]\nname="t"\nfunction="a:b"\n' + STEP,
        "tool[1].name", 5, "there is a tool 't' already", None,
    ),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\nparameters={type="objekt"}\n' + STEP,
        "tool[0].parameters", 4, "not valid under any", None,
    ),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\nparameters={type="string"}\n' + STEP,
        "tool[0].parameters", 4, "are an object", None,
    ),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\n'
        'parameters={properties={x={pattern="(a+)+$"}}}\n' + STEP,
        "tool[0].parameters", 4, "pattern is not supported", None,
    ),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\n'
        'parameters={properties={x={"$ref"="http://h/s"}}}\n' + STEP,
        "tool[0].parameters", 4, "leaves the schema", None,
    ),
    (
        '[[tool]]\nname="t"\nfunction="a:b"\n'
        'parameters={properties={x={"$ref"="#/properties/x"}}}\n' + STEP,
        "tool[0].parameters", 4, "contains itself", None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key", "line", "part", "hint"),
    BAD,
    ids=[f"{b[1]}-{b[3][:20]}-{i}" for i, b in enumerate(BAD)],
)
def test_mistake_has_its_place_and_what_to_try(
    text: str, key: str | None, line: int | None, part: str, hint: str | None
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse_workflow(text, file="w.toml")
    error = caught.value.errors[0]
    if part:
        assert len(caught.value.errors) == 1, str(caught.value)
    assert error.file == "w.toml"
    assert error.key == key
    assert error.line == line
    assert part in error.message
    assert hint is None or hint in (error.hint or "")


def test_subtraction_by_mistake_is_explained() -> None:
    text = (
        '[[step]]\nname="my-step"\nprompt="x"\n'
        '[[step]]\nname="b"\nafter=["my-step"]\nprompt="{{ steps.my-step.output }}"'
    )
    with pytest.raises(ConfigErrors) as caught:
        parse_workflow(text)
    assert 'write steps["my-step"]' in [error.hint for error in caught.value.errors]


def test_pattern_is_a_fine_name_for_an_argument() -> None:
    assert parse_workflow(EVERYTHING).tools["search_repo"].parameters["required"] == ["pattern"]


def test_schema_that_doubles_at_every_level_is_refused() -> None:
    levels = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(30)} | {
        "l30": {"type": "string"}
    }
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/l0"}}, "$defs": levels}
    document = {
        "tool": [{"name": "t", "function": "a:b", "parameters": schema}],
        "step": [{"name": "a", "prompt": "x"}],
    }
    with pytest.raises(ConfigErrors, match="more than 5000 parts"):
        workflow_from_document(document)


@pytest.mark.parametrize(
    ("more", "key", "part", "hint"),
    [
        ('models = ["smolm2"]', "step[0].models[0]", "unknown model 'smolm2'", "'smollm2'"),
        (
            '[[tool]]\nname = "t"\nfunction = "os:system"',
            "tool[0].function", "does not allow 'os:system'", "[tools]",
        ),
        ('[[tool]]\nname = "t"\nurl = "http://x/y"', "tool[0].url", "does not allow", "[tools]"),
    ],
)  # fmt: skip
def test_workflow_is_checked_against_the_fleet(more: str, key: str, part: str, hint: str) -> None:
    with pytest.raises(ConfigErrors) as caught:
        parse_workflow(STEP + more, fleet=load_fleet(environ={}).spec)
    (error,) = caught.value.errors
    assert error.key == key
    assert part in error.message
    assert hint in (error.hint or "")


def test_models_groups_aliases_and_allowed_tools_pass() -> None:
    fleet = parse_fleet(
        '[[model]]\nname = "m"\nsource = "hf:a/b"\naliases = ["mm"]\n'
        '[[group]]\nname = "g"\nmodels = ["m"]\n[tools]\nallow = ["my.tools:*"]',
        environ={},
    ).spec
    text = STEP + 'models = ["m", "mm", "g", "auto"]\n'
    text += '[[tool]]\nname = "t"\nfunction = "my.tools:find"'
    assert parse_workflow(text, fleet=fleet).steps["a"].models == ("m", "mm", "g", "auto")


# --- round trips --------------------------------------------------------------------------------


def test_document_gives_the_workflow_back() -> None:
    spec = parse_workflow(EVERYTHING)
    assert workflow_from_document(workflow_document(spec)) == spec


_NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
_TEXTS = st.text(min_size=1, max_size=30).filter(
    lambda text: text.strip() and "\0" not in text and not set(text) & set("{}")
)
_JSON = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def workflows(draw: st.DrawFn) -> WorkflowSpec:
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    tools = {
        name: ToolSpec(name, draw(st.sampled_from(["", "does things"])), function="m:f")
        for name in draw(st.lists(_NAMES, max_size=2, unique=True))
    }
    steps: dict[str, StepSpec] = {}
    for name in names:
        after = draw(st.lists(st.sampled_from(list(steps)), unique=True)) if steps else []
        steps[name] = StepSpec(
            name,
            draw(_TEXTS),
            role=draw(st.sampled_from(["coder", "assistant", "own-role"])),
            system=draw(st.none() | _TEXTS),
            models=tuple(draw(st.lists(_NAMES, max_size=2, unique=True))),
            after=tuple(after),
            tools=tuple(tools),
            repeat=draw(st.none() | st.just(RepeatSpec(name, "visit > 1", 2))),
            for_each=draw(st.none() | st.just("{{ [1, 2] }}")),
            max_tokens=draw(st.none() | st.integers(1, 99)),
            options=draw(st.dictionaries(st.sampled_from(["seed", "stop"]), _JSON, max_size=2)),
        )
    return WorkflowSpec(
        draw(_NAMES),
        steps,
        draw(st.sampled_from(ServiceClass)),
        draw(st.none() | st.floats(0.5, 99)),
        tools,
        draw(st.dictionaries(st.sampled_from(["v", "w"]), _JSON, max_size=2)),
        draw(st.none() | st.sampled_from(names)),
    )


@given(workflows())
def test_any_workflow_survives_a_round_trip(spec: WorkflowSpec) -> None:
    assert workflow_from_document(workflow_document(spec)) == spec


_WORDS = st.sampled_from(
    ["workflow", "step", "tool", "name", "prompt", "after", "repeat", "for_each", "variables"]
)
_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(_WORDS, _DOCUMENTS, max_size=4))
def test_no_document_does_anything_but_load_or_be_refused(document: dict[str, object]) -> None:
    try:
        workflow_from_document(document)
    except ConfigErrors:
        pass
