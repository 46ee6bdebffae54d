"""A run that could not end well is refused before anything starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.config import load_fleet, parse_workflow
from maestroctl.errors import ConfigErrors
from maestroctl.gateway.submit import JobRequest
from maestroctl.live.workflow.admission import check_request

FLEET = load_fleet(environ={}).spec
STEP = '[variables]\nlang = "en"\n[[step]]\nname = "a"\nprompt = "{{ input }} {{ vars.lang }}"\n'


def test_good_request_passes() -> None:
    check_request(JobRequest(parse_workflow(STEP), "x", {"lang": "de"}), FLEET)


@pytest.mark.parametrize(
    ("text", "given", "variables", "key", "part"),
    [
        (STEP, None, {}, "input", "needs an input"),
        (STEP, "x", {"lng": "de"}, "variables.lng", "no variable 'lng'"),
        (STEP + 'models = ["gpt"]', "x", {}, "step[0].models[0]", "unknown model 'gpt'"),
        (
            STEP + '[[tool]]\nname = "t"\nfunction = "os:system"',
            "x",
            {},
            "tool[0].function",
            "does not allow 'os:system'",
        ),
    ],
    ids=["no input", "variable", "model", "tool"],
)
def test_bad_request_names_what_is_wrong(
    text: str, given: str | None, variables: dict[str, str], key: str, part: str
) -> None:
    with pytest.raises(ConfigErrors) as caught:
        check_request(JobRequest(parse_workflow(text), given, variables), FLEET)
    (error,) = caught.value.errors
    assert error.key == key
    assert part in error.message


def test_spec_that_was_not_read_from_a_file_is_checked_too() -> None:
    spec = parse_workflow(STEP)
    step = replace(spec.steps["a"], prompt="{{ input.__class__ }}", after=("b",))
    with pytest.raises(ConfigErrors) as caught:
        check_request(JobRequest(replace(spec, steps={"a": step}), "x"), FLEET)
    assert {error.key for error in caught.value.errors} == {"step[0].prompt", "step[0].after[0]"}


@pytest.mark.parametrize(
    "prompt", ["{{ input | default('x') }}", "{% if input is defined %}{{ input }}{% endif %}"]
)
def test_input_with_a_default_may_be_left_out(prompt: str) -> None:
    text = f'[[step]]\nname = "a"\nprompt = "{prompt}"\n'
    check_request(JobRequest(parse_workflow(text)), FLEET)


def test_part_filed_under_another_name_is_refused() -> None:
    spec = parse_workflow(STEP)
    with pytest.raises(ConfigErrors, match=r"steps\.b: it is filed under 'b'"):
        check_request(JobRequest(replace(spec, steps={"b": spec.steps["a"]}), "x"), FLEET)
