"""Conditions: what they can say, what they cannot reach."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.config.expressions import Condition, ExpressionFailed, ExpressionMistake
from maestroctl.config.step_view import StepView

SCOPE: dict[str, Any] = {
    "output": " Verdict: APPROVED 8/10 ",
    "input": "text",
    "visit": 2,
    "vars": {"limit": 7},
    "steps": {"plan": StepView("plan", ["- a\n- b"]), "data": StepView("data", ['{"ok": true}'])},
}


@pytest.mark.parametrize(
    ("source", "holds"),
    [
        ("'APPROVED' in output", True),
        ("'REJECTED' in output", False),
        ("'REJECTED' not in output and visit < 3", True),
        ("output.strip().startswith('Verdict')", True),
        ("startswith(lower(strip(output)), 'verdict')", True),
        ("contains(output, 'APPROVED') or False", True),
        ("number(output) >= vars.limit", True),
        ("number('none') is None", True),
        ("len(output) > 1000", False),
        ("len(lines(steps.plan.output)) == 2", True),
        ("len(steps.plan.lines) == 2", True),
        ("steps.plan.lines[0] == '- a'", True),
        ("steps['plan'].lines[-1][2:] == 'b'", True),
        ("steps.data.json.ok", True),
        ("json(steps.data.output)['ok'] == True", True),
        ("visit in [1, 2]", True),
        ("visit in (1, 3)", False),
        ("1 < visit <= 2", True),
        ("'yes' if visit > 1 else ''", True),
        ("count(output, 'P') + 1 == 3", True),
        ("int('3') * 2 - 1 == 5 and 7 % 4 == 3 and 7 // 2 == 3 and 1 / 2 == 0.5", True),
        ("not output", False),
        ("words(output)[0] == 'Verdict:'", True),
        ("steps.plan.output.upper() == '- A\\n- B'", True),
        ("-visit == -2", True),
        ("input + '!' == 'text!'", True),
    ],
)
def test_conditions_say(source: str, holds: bool) -> None:
    assert Condition(source).holds(SCOPE) is holds


ATTEMPTS = [
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "output.__class__",
    "output['__class__']",
    "getattr(output, '__class__')",
    "output.format(1)",
    "'{0.__class__}'.format(output)",
    "output.format_map({})",
    "f'{output.__class__}'",
    "f'{output:>1000000000}'",
    "'%1000000000d' % 1",
    "[x for x in output]",
    "{x: 1 for x in output}",
    "(x for x in output)",
    "lambda: 1",
    "(lambda: 1)()",
    "output * 1000000000",
    "[1] * 1000000000",
    "[1] + [2]",
    "9 ** 9 ** 9",
    "1 << 1000000000",
    "~1",
    "1 | 2",
    "open('/etc/passwd')",
    "eval('1')",
    "exec('1')",
    "print(1)",
    "str.mro",
    "json.loads",
    "json",
    "len",
    "len.__self__",
    "steps",
    "steps[output]",
    "steps.plan.field('output')",
    "steps.plan._outputs",
    "steps.plan.__class__",
    "vars",
    "output := 1",
    "(y := 1)",
    "import os",
    "output; 1",
    "x = 1",
    "del output",
    "await output",
    "yield output",
    "*output",
    "len(*[output])",
    "len(value=output)",
    "{'a': 1}",
    "{1, 2}",
    "...",
    "b'bytes'",
    "1j",
    "output.upper",
    "strip(output).encode()",
    "sorted(output)",
    "range(10)",
    "type(output)",
    "",
    "   ",
    "'a' in",
    "(" * 500 + "1" + ")" * 500,
    "not " * 5000 + "1",
    " + ".join(["1"] * 200),
    "'" + "a" * 3000 + "'",
    "\0",
    "unknown",
]


@pytest.mark.parametrize("source", ATTEMPTS, ids=lambda value: value[:40] or "empty")
def test_attempt_to_get_out_is_refused(source: str) -> None:
    started = time.process_time()
    with pytest.raises((ExpressionMistake, ExpressionFailed)):
        Condition(source).holds(SCOPE)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "source",
    [
        "json(output).ok",
        "output > 3",
        "steps.plan.lines[9]",
        "steps.data.json.missing",
        "int(output)",
        "visit / 0 > 1",
        "len(visit)",
        "input.x",
        "'a' in visit",
    ],
)
def test_value_of_the_wrong_kind_is_a_failure_of_the_run_not_of_the_file(source: str) -> None:
    condition = Condition(source)
    with pytest.raises(ExpressionFailed):
        condition.holds(SCOPE)


def test_references_are_found() -> None:
    found = Condition("len(steps.a.lines) > vars.n and steps['b'].output.strip() == output")
    assert found.references.names == {"steps", "vars", "output"}
    assert found.references.steps == {("a", "lines"), ("b", "output")}
    assert found.references.variables == {"n"}


def test_linear_functions_over_long_outputs_are_quick() -> None:
    source = " and ".join(["len(lines(output)) > 0"] * 10)
    started = time.process_time()
    assert Condition(source).holds({"output": "line\n" * 200_000})
    assert time.process_time() - started < 5


_PIECES = st.sampled_from(
    [
        "output", "steps", ".plan", ".output", ".__class__", "['__class__']", "(", ")", "[", "]",
        "'a'", "1", "+", "*", "**", " in ", " and ", " or ", "not ", "==", "<", "len", "json", ".",
        "lambda:", "for x in ", "x", "f'{output}'", ":", ",", "__import__", "{", "}", "if ",
        " else ",
    ]
)  # fmt: skip


@settings(max_examples=500)
@given(st.lists(_PIECES, max_size=12).map("".join) | st.text(max_size=30))
def test_no_text_does_anything_but_hold_or_fail(source: str) -> None:
    try:
        assert Condition(source).holds(SCOPE) in (True, False)
    except (ExpressionMistake, ExpressionFailed):
        pass
