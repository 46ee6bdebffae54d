"""Templates: what they can say, what they cannot reach, and that they cannot cost much."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.config.step_view import StepView
from maestroctl.config.template_filters import FILTERS
from maestroctl.config.template_syntax import TemplateMistake
from maestroctl.config.templates import MAX_OUTPUT, ListTemplate, PromptTemplate

SCOPE: dict[str, Any] = {
    "input": "some text",
    "steps": {
        "plan": StepView("plan", ["- one\n\n  - two \n"]),
        "work": StepView("work", ["A", "B"]),
        "data": StepView("data", ['```json\n{"k": [1, 2], "_x": 3}\n```']),
        "later": StepView("later"),
        "my-step": StepView("my-step", ["dashed"]),
    },
    "vars": {"lang": "en", "nested": {"a": [True, None]}},
    "visit": 2,
    "previous": "before",
    "item": {"name": "n", "list": [3, 1, 2]},
    "index": 0,
}


def render(source: str, **more: Any) -> str:
    return PromptTemplate(source).render({**SCOPE, **more})


# --- what they can say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("plain", "plain"),
        ("{{ input }}", "some text"),
        ("{{ steps.plan.output }}", "- one\n\n  - two \n"),
        ("{{ steps.plan }}", "- one\n\n  - two \n"),
        ("{{ steps.plan.lines }}", '["- one", "- two"]'),
        ("{{ steps.plan.lines[1:] }}", '["- two"]'),
        ("{{ steps.plan.lines | length }}", "2"),
        ("{{ steps.work.output }}", "A\n\nB"),
        ("{{ steps.work.items | join('/') }}", "A/B"),
        ("{{ steps.data.json.k[1] }}", "2"),
        ("{{ steps.data.json['_x'] }}", "3"),
        ('{{ steps["my-step"].output }}', "dashed"),
        ("{% if steps.later.output %}no{% else %}none{% endif %}", "none"),
        ("{% if steps.later %}no{% else %}none{% endif %}", "none"),
        ("{{ steps.later.lines }}{{ steps.later.json }}", "[]"),
        (
            "{% for l in steps.plan.lines %}{{ loop.index }}:{{ l }};{% endfor %}",
            "1:- one;2:- two;",
        ),
        ("{% for x in item.list if x > 1 %}{{ x }}{% endfor %}", "32"),
        ("{% for x in [] %}a{% else %}none{% endfor %}", "none"),
        ("{{ vars.nested.a }}", "[true, null]"),
        ("{{ vars.nested.a[0] }}", "true"),
        ("{{ 'again: ' ~ previous if visit > 1 else '' }}", "again: before"),
        ("{{ index + 1 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ -3 | abs }}", "1 3 3 3"),
        ("{{ missing | default('d') }}", "d"),
        ("{{ missing is defined }}", "false"),
        ("{{ item.list | sort | join(',') }}", "1,2,3"),
        ("{{ 'a-b' | replace('-', '+') | upper }}", "A+B"),
        ("{{ item }}", '{"name": "n", "list": [3, 1, 2]}'),
        ("{{ 'x' in input }} {{ 'some' in input }}", "true true"),
        ("{{ ' a \n b ' | lines }}", '["a", "b"]'),
        ("{{ '[1]' | from_json | first }}", "1"),
        ("{{ {'no': 1} }}", None),
        ("{# a comment #}", ""),
        ("{% if visit == 2 %}\n  yes\n{% endif %}\n", "  yes\n"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_templates_say(source: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(TemplateMistake):
            render(source)
    else:
        assert render(source) == text


@pytest.mark.parametrize("name", sorted(FILTERS))
def test_every_filter_gives_a_value_or_a_mistake(name: str) -> None:
    for value in (
        "input",
        "item",
        "item.list",
        "visit",
        "steps.plan",
        "missing",
        "vars.nested.a[1]",
    ):
        try:
            text = render(f"{{{{ {value} | {name} }}}}")
        except TemplateMistake:
            continue
        assert isinstance(text, str)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("{{ missing }}", "'missing' is undefined"),
        ("{{ vars.missing }}", "no 'missing' in this table"),
        ("{{ input.x }}", "no 'x' in this text"),
        ("{{ steps.plan.json }}", "the output of step 'plan' is not JSON"),
        ("{{ input + 1 }}", "use ~ to join texts"),
        ("{% for c in input %}{{ c }}{% endfor %}", "a loop needs a list"),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ [] | first }}", "out of range"),
        ("{{ [1, 'a'] | sort }}", "not supported"),
    ],
    ids=lambda value: value[:30],
)
def test_what_goes_wrong_is_said(source: str, part: str) -> None:
    with pytest.raises(TemplateMistake, match=re.escape(part)):
        render(source)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("{{", "unexpected 'end of template'"),
        ("a\n{% if x %}", "line 2"),
        ("{{ x | upperr }}", "unknown filter 'upperr'"),
        ("{{ x is odds }}", "unknown test 'odds'"),
        ("{% for input in [1] %}{% endfor %}", "cannot be the name of a loop variable"),
        ("{{ steps }}", "steps must be followed by a name"),
        ("{{ steps[input] }}", "steps must be followed by a name"),
        ("{% for s in steps %}{% endfor %}", "steps must be followed by a name"),
        ("{{ vars }}", "vars must be followed by a name"),
        ("x" * 70_000, "at most 65536"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested too deeply"),
        ("{{ " + "not " * 3000 + "1 }}", "nested too deeply"),
        ("{{ 1" + "|abs" * 3000 + " }}", "the template "),
        ("{% for x in [1] %}" * 30 + "{% endfor %}" * 30, "too complicated"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_template_is_refused_when_it_is_read(source: str, part: str) -> None:
    with pytest.raises(TemplateMistake, match=re.escape(part)):
        PromptTemplate(source)


# --- what they cannot reach ---------------------------------------------------------------------

ATTEMPTS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''['__cl' ~ 'ass__'] }}",
    "{{ input['__class__']['__mro__'] }}",
    "{{ input|attr('__class__') }}",
    "{{ input|map(attribute='__class__')|list }}",
    "{{ [input]|map(attribute='__class__')|list }}",
    "{{ [input]|groupby('__class__') }}",
    "{{ [input]|selectattr('__class__')|list }}",
    "{{ [input]|sum(attribute='__class__') }}",
    "{{ [input]|join(attribute='__class__') }}",
    "{{ '{0.__class__}'.format(input) }}",
    "{{ '{0.__class__}'|format(input) }}",
    "{{ '%s'|format(input) }}",
    "{{ ('{0.__class__}'.format_map)({'0': input}) }}",
    "{{ lipsum }}",
    "{{ lipsum.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace }}",
    "{{ range(9) }}",
    "{{ dict(a=1) }}",
    "{{ self }}",
    "{{ self._TemplateReference__context }}",
    "{{ steps.plan._outputs }}",
    "{{ steps.plan.field }}",
    "{{ steps.plan.__class__ }}",
    "{{ steps.plan['__class__'] }}",
    "{{ steps.plan.lines.append }}",
    "{{ steps.plan.lines.__add__ }}",
    "{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% for x in [1] %}{{ loop['_iterator'] }}{% endfor %}",
    "{% for x in [1] %}{{ loop.cycle('a') }}{% endfor %}",
    "{% for x in [1] %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
    "{{ visit.real.__class__ }}",
    "{{ visit.bit_length }}",
    "{{ vars.keys }}{{ vars.keys() }}",
    "{{ vars['__class__'] }}",
    "{% set x = input %}{{ x }}",
    "{% set ns.x = 1 %}",
    "{% macro m() %}{% endmacro %}",
    "{% import 'os' as os %}",
    "{% include '/etc/passwd' %}",
    "{% extends 'x' %}",
    "{% block b %}{% endblock %}",
    "{% filter upper %}x{% endfilter %}",
    "{% call x() %}{% endcall %}",
    "{% with a = 1 %}{{ a }}{% endwith %}",
    "{% autoescape true %}{% endautoescape %}",
    "{% raw %}{% endraw %}{{ debug }}",
    "{% debug %}",
    "{{ caller }}",
    "{{ varargs }}{{ kwargs }}",
    "{{ context }}{{ environment }}{{ resolve }}",
    "{{ input.upper() }}",
    "{{ (input.upper)() }}",
    "{{ input|d(input).__class__ }}",
    "{{ 2 ** 100 }}",
    "{{ x|upper(*[1]) }}",
    "{{ x|upper(**{'a': 1}) }}",
    "{{ '\\x5f\\x5fclass\\x5f\\x5f' | attr }}",
    "{{ input['\\x5f\\x5fclass\\x5f\\x5f'] }}",
    "{{ \0meter }}",
    "{{ input | \0seen }}",
]


@pytest.mark.parametrize("source", ATTEMPTS, ids=range(len(ATTEMPTS)))
def test_attempt_to_get_out_is_refused(source: str) -> None:
    with pytest.raises(TemplateMistake):
        render(source)


_PIECES = st.sampled_from(
    [
        "{{", "}}", "{%", "%}", " input ", "steps.plan", "vars", ".__class__", "['__class__']",
        ".output", "|attr('x')", "|upper", "|join", "()", "for x in ", "endfor", "if ", "endif",
        "loop", ".", "[", "]", "(", ")", "'", "lipsum", "cycler", "self", "~", "+", "*", "**", "1",
        "set x=", "x", "|", "{", "}", "#", "\n", "__", "\\", "is defined", "else", "_", "\0",
    ]
)  # fmt: skip


@settings(max_examples=400)
@given(st.lists(_PIECES, max_size=14).map("".join) | st.text(max_size=40))
def test_no_text_reaches_a_python_object(source: str) -> None:
    try:
        text = render(source)
    except TemplateMistake:
        return
    assert not re.search(r"<(class|built-in|bound|function|module|generator|jinja2)", text)
    assert " object at 0x" not in text


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_text_without_braces_is_left_alone(source: str) -> None:
    if any(mark in source for mark in ("{{", "{%", "{#")):
        return
    expected = re.sub(r"\r\n|\r", "\n", source)
    expected = expected[:-1] if expected.endswith("\n") else expected
    assert render(source) == expected


@given(st.text(max_size=200))
def test_values_are_data_and_never_run(value: str) -> None:
    assert render("{{ input }}", input=value) == value


# --- what they cannot cost ----------------------------------------------------------------------

BOMBS = [
    "{{ 'a' * 1000000000 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ ['a'] * 1000000000 }}",
    "{% for a in big %}{% for b in big %}{% for c in big %}x{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in big %}{% for b in big %}{{ huge | sort }}{% endfor %}{% endfor %}",
    "{% for a in big %}{% for b in big %}{{ 'x' in text }}{% endfor %}{% endfor %}",
    "{% for a in big %}{{ text }}{% endfor %}",
    "{{ text" + " ~ text" * 500 + " }}",
    "{{ text" + "|tojson" * 60 + " }}",
    "{{ text" + "|replace('a', 'aaaaaaaaaaaaaaaaaaaa')" * 20 + " }}",
    "{{ text|replace('', 'aaaaaaaaaaaaaaaaaaaa')|replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaa') }}",
    "{{ huge" + "|join(text)" * 3 + " }}",
    "{{ huge | join(text) }}",
    "{{ text | indent(1000000000, true) }}",
    "{{ text | truncate(10, text ~ text ~ text ~ text ~ text ~ text) ~ 1 * 'x' }}",
    "{{ " + "+".join(["text"] * 500) + " }}",
    "{{ " + "*".join(["999999999"] * 2000) + " }}" + "{{ 'a' * 2 }}",
]


@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_bomb_is_stopped_soon(source: str) -> None:
    values = {"big": list(range(1000)), "text": "a" * 200_000, "huge": list("ab" * 20_000)}
    scope = {**SCOPE, **values}
    started = time.process_time()
    with pytest.raises(TemplateMistake):
        PromptTemplate(source).render(scope)
    assert time.process_time() - started < 5


def test_output_has_a_limit_even_without_a_loop_over_much() -> None:
    source = "{% for a in big %}" + "x" * 60_000 + "{% endfor %}"
    with pytest.raises(TemplateMistake, match="longer than"):
        PromptTemplate(source).render({"big": list(range(1000))})
    assert MAX_OUTPUT >= 1 << 20


def test_ordinary_work_is_far_from_the_limit() -> None:
    outputs = StepView("work", ["a long answer of a model. " * 400] * 100)
    source = "{% for o in steps.work.items %}{{ loop.index }}. {{ o | trim }}\n{% endfor %}"
    assert len(render(source, steps={"work": outputs})) > 1_000_000


# --- lists --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("{{ steps.plan.lines }}", ["- one", "- two"]),
        ("  {{ steps.work.items }}\n", ["A", "B"]),
        ("{{ steps.data.json.k }}", [1, 2]),
        ("{{ item.list[:2] }}", [3, 1]),
        ("{{ ['a', input] }}", ["a", "some text"]),
        ("{{ vars.nested.a }}", [True, None]),
        ("{{ steps.plan.lines if visit == 2 else [] }}", ["- one", "- two"]),
    ],
    ids=str,
)
def test_for_each_gives_the_list_itself(source: str, items: list[Any]) -> None:
    assert ListTemplate(source).items(SCOPE) == items


@pytest.mark.parametrize(
    "source",
    ["text", "{{ input }} {{ input }}", "a {{ input }}", "{% for x in [1] %}{% endfor %}", "{{ }}"],
)
def test_for_each_must_be_one_expression(source: str) -> None:
    with pytest.raises(TemplateMistake):
        ListTemplate(source)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("{{ input }}", "gave a text, not a list"),
        ("{{ steps.plan }}", "gave a text, not a list"),
        ("{{ item }}", "gave a dict, not a list"),
        ("{{ missing }}", "'missing' is undefined"),
        ("{{ many }}", "gave 2000 items, at most 1000"),
    ],
)
def test_for_each_that_gives_no_good_list_fails(source: str, part: str) -> None:
    with pytest.raises(TemplateMistake, match=part):
        ListTemplate(source).items({**SCOPE, "many": [0] * 2000})


# --- references ---------------------------------------------------------------------------------


def test_references_are_found_wherever_they_stand() -> None:
    source = (
        "{% for x in steps.a.lines if vars.v %}{{ steps['b'].json[x] }}{{ x }}{% endfor %}"
        "{{ input | default(steps.c) }}{{ visit is defined }}"
    )
    found = PromptTemplate(source).references
    assert found.names == {"steps", "vars", "input", "visit"}
    assert found.steps == {("a", "lines"), ("b", "json"), ("c", None)}
    assert found.variables == {"v"}
    assert found.guarded == {"input", "visit"}
