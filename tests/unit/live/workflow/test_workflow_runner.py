"""The runner executes what the core asks for: shapes, tools, failures, cancelling, resuming."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from maestroctl.config import parse_workflow
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.workflow import RepeatSpec
from maestroctl.errors import ConfigError, InvalidRequest, Overloaded, Unavailable, UpstreamFailed
from maestroctl.gateway.submit import JobRequest, StageCall
from maestroctl.live.workflow.progress import ProgressKind
from maestroctl.scheduler.effects import FinishJob
from maestroctl.store.rows import StepResultRow
from tests.unit.live.workflow.fake_host import JOB, FakeHost, Say, Script, fails

TOOLS = ("maestroctl.examples.tools:*",)

SERIAL = """
[[step]]
name = "plan"
role = "planner"
system = "You plan {{ vars.what }}."
prompt = "{{ input }}"
max_tokens = 5
options = { temperature = 0 }
[[step]]
name = "write"
role = "writer"
after = ["plan"]
prompt = "{{ steps.plan.output }} / {{ steps.plan.lines | length }}"
[variables]
what = "books"
"""

FAN_OUT = """
[[step]]
name = "split"
prompt = "{{ input }}"
[[step]]
name = "work"
role = "worker"
after = ["split"]
for_each = "{{ steps.split.lines }}"
prompt = "{{ index }}:{{ item }}"
[[step]]
name = "join"
after = ["work"]
prompt = "{{ steps.work.items | length }} {{ steps.work.output }}"
"""

LOOP = """
[[step]]
name = "code"
role = "coder"
prompt = "code {{ visit }} [{{ steps.review.output }}] [{{ previous }}]"
[[step]]
name = "review"
role = "reviewer"
after = ["code"]
prompt = "review {{ steps.code.output }}"
repeat = { back_to = "code", until = "'APPROVED' in output", at_most = 3 }
[[step]]
name = "ship"
after = ["review"]
prompt = "{{ steps.code.output }}"
"""

TOOL = """
[[tool]]
name = "word_count"
description = "counts words"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
function = "maestroctl.examples.tools:word_count"
[[step]]
name = "ask"
tools = ["word_count"]
max_tool_rounds = 2
prompt = "{{ input }}"
"""


def request(text: str, given: object = "in", **fields: object) -> JobRequest:
    return JobRequest(parse_workflow(text), given, **fields)  # type: ignore[arg-type]


def in_turn(*answers: Say | str) -> Script:
    left = iter(answers)
    return lambda _: next(left)


def echo(call: StageCall) -> Say | str:
    return f"<{call.body['messages'][-1]['content']}>"


# --- shapes -------------------------------------------------------------------------------------


async def test_serial_steps_read_what_came_before() -> None:
    host = FakeHost(in_turn("one\n\n two ", "done"))
    assert await host.run_job(request(SERIAL)) == "done"
    first, second = host.stages.calls
    assert first.body == {
        "messages": [
            {"role": "system", "content": "You plan books."},
            {"role": "user", "content": "in"},
        ],
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
    }
    assert second.body["messages"] == [{"role": "user", "content": "one\n\n two  / 2"}]


async def test_stages_say_what_they_are() -> None:
    host = FakeHost(in_turn("a", "b"))
    await host.run_job(request(SERIAL), deadline_s=1500.0)
    first, second = (call.stage for call in host.stages.calls)
    assert (first.step, first.role, first.position, first.depth) == ("plan", "planner", 0, 0)
    assert (second.step, second.role, second.position, second.depth) == ("write", "writer", 1, 1)
    assert first.max_tokens == 5
    assert first.deadline_s == 1500.0
    assert not first.external
    assert first.prompt_tokens.full >= 1
    assert len({first.stage_id, second.stage_id}) == 2


async def test_variables_of_the_request_win() -> None:
    host = FakeHost(in_turn("a", "b"))
    await host.run_job(request(SERIAL, variables={"what": "trips"}))
    assert host.stages.calls[0].body["messages"][0]["content"] == "You plan trips."


async def test_fan_out_runs_once_per_item_and_joins() -> None:
    answers = {"in": "a\nb\nc"}
    host = FakeHost(lambda call: answers.get(call.body["messages"][-1]["content"]) or echo(call))
    assert await host.run_job(request(FAN_OUT)) == "<3 <0:a>\n\n<1:b>\n\n<2:c>>"
    work = [row for row in host.rows if row.step == "work"]
    assert {(row.item, row.num_items, row.output) for row in work} == {
        (0, 3, "<0:a>"),
        (1, 3, "<1:b>"),
        (2, 3, "<2:c>"),
    }


async def test_empty_fan_out_is_finished_at_once() -> None:
    host = FakeHost(in_turn("  \n\n", "end"))
    assert await host.run_job(request(FAN_OUT)) == "end"
    assert host.prompts()[-1] == "0 "


async def test_loop_goes_back_until_its_condition_holds() -> None:
    host = FakeHost(in_turn("v1", "bad", "v2", "APPROVED", "shipped"))
    assert await host.run_job(request(LOOP)) == "shipped"
    assert host.prompts() == [
        "code 1 [] []",
        "review v1",
        "code 2 [bad] [v1]",
        "review v2",
        "v2",
    ]
    assert [row.repeat for row in host.rows if row.step == "review"] == [True, False]


async def test_loop_ends_after_at_most_rounds() -> None:
    host = FakeHost(echo)
    await host.run_job(request(LOOP))
    assert [row.visit for row in host.rows if row.step == "review"] == [1, 2, 3]
    assert [row.repeat for row in host.rows if row.step == "review"] == [True, True, False]


async def test_condition_that_cannot_be_evaluated_does_not_hold() -> None:
    text = LOOP.replace("'APPROVED' in output", "json(output).ok")
    host = FakeHost(in_turn("v1", "not json", "v2", '```json\n{"ok": true}\n```', "end"))
    assert await host.run_job(request(text)) == "end"
    problems = [p.text for p in host.progress if p.kind is ProgressKind.STEP_FINISHED and p.text]
    assert len(problems) == 1
    assert "until could not be evaluated" in problems[0]


async def test_output_step_is_the_one_the_workflow_names() -> None:
    host = FakeHost(in_turn("first", "second"))
    text = '[workflow]\noutput = "plan"\n' + SERIAL
    assert await host.run_job(request(text)) == "first"


async def test_input_may_be_any_json_value() -> None:
    host = FakeHost(echo)
    text = '[[step]]\nname = "a"\nprompt = "{{ input.q }} {{ input.n[0] }} {{ input.n }}"'
    assert await host.run_job(request(text, {"q": "why", "n": [1, True]})) == "<why 1 [1, true]>"


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "given", "part"),
    [
        ('[[step]]\nname="a"\nprompt="{{ input.x }}"', "text", "no 'x' in this text"),
        (
            '[[step]]\nname="a"\nprompt="{{ input }} {{ 1 if input is defined }}"',
            None,
            "'input' is undefined",
        ),
        (
            '[[step]]\nname="a"\nfor_each="{{ input }}"\nprompt="x"',
            "text",
            "for_each gave a text, not a list",
        ),
    ],
    ids=["no such key", "no input", "no list"],
)
async def test_template_that_fails_fails_the_step(text: str, given: object, part: str) -> None:
    host = FakeHost(echo)
    assert await host.run_job(request(text, given)) is None
    assert host.failed is not None
    assert host.failed.outcome is Outcome.INVALID
    assert part in host.failed.reason
    assert host.stages.calls == []


async def test_engine_failure_is_tried_again_twice_under_new_stage_ids() -> None:
    broken = fails(UpstreamFailed("it died"), late=True, text="half an ans")
    host = FakeHost(in_turn(broken, broken, "whole"))
    text = '[[step]]\nname="a"\nprompt="x"'
    assert await host.run_job(request(text)) == "whole"
    assert len({call.stage.stage_id for call in host.stages.calls}) == 3
    assert [call.stage.position for call in host.stages.calls] == [0, 0, 0]
    assert host.stages.left == 3


async def test_step_fails_after_three_engine_failures_with_a_readable_reason() -> None:
    host = FakeHost(lambda _: fails(UpstreamFailed("it died")))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.failed is not None
    assert host.failed.outcome is Outcome.FAILED
    assert host.failed.reason == "step 'a': failed 3 times, last: it died"
    assert len(host.stages.calls) == 3


@pytest.mark.parametrize("finish", [None, "abort", "error"])
async def test_answer_that_does_not_end_well_is_not_an_answer(finish: str | None) -> None:
    host = FakeHost(in_turn(Say("partial", finish=finish), "whole"))
    assert await host.run_job(request('[[step]]\nname="a"\nprompt="x"')) == "whole"


async def test_overload_is_waited_out_with_back_off() -> None:
    full = fails(Overloaded("full", retry_after_s=2.0))
    host = FakeHost(in_turn(full, full, full, full, "ok"))
    assert await host.run_job(request('[[step]]\nname="a"\nprompt="x"')) == "ok"
    assert host.waits_s == [2.0, 2.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Overloaded("full"), Outcome.REJECTED), (Unavailable("none"), Outcome.UNAVAILABLE)],
)
@pytest.mark.parametrize(("deadline_s", "longest_s"), [(1030.0, 30.0), (None, 600.0)])
async def test_waiting_ends_with_the_deadline_or_after_ten_minutes(
    error: Overloaded, outcome: Outcome, deadline_s: float | None, longest_s: float
) -> None:
    host = FakeHost(lambda _: fails(error))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'), deadline_s=deadline_s)
    assert host.failed is not None
    assert host.failed.outcome is outcome
    assert longest_s - 16 <= sum(host.waits_s) <= longest_s


async def test_stage_that_nothing_will_ever_serve_fails_at_once() -> None:
    never = Unavailable("m can never run on n1: no room", code="model_unavailable")
    host = FakeHost(lambda _: fails(never))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.failed is not None
    assert host.failed.outcome is Outcome.UNAVAILABLE
    assert "can never run on n1" in host.failed.reason
    assert len(host.stages.calls) == 1
    assert host.waits_s == []


async def test_preempted_stage_waits_and_does_not_count_as_a_failure() -> None:
    preempted = fails(UpstreamFailed("memory", code="preempted"), late=True)
    host = FakeHost(in_turn(*[preempted] * 5, "ok"))
    assert await host.run_job(request('[[step]]\nname="a"\nprompt="x"')) == "ok"


async def test_request_the_engine_refuses_fails_at_once() -> None:
    body = json.dumps({"error": {"message": "max_tokens is too large"}}).encode()
    refused = Say(status=400, body=body, content_type="application/json")
    host = FakeHost(lambda _: refused)
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.failed is not None
    assert host.failed.outcome is Outcome.INVALID
    assert "400: max_tokens is too large" in host.failed.reason
    assert len(host.stages.calls) == 1


async def test_refused_request_of_any_error_type_fails_at_once() -> None:
    host = FakeHost(lambda _: fails(InvalidRequest("no")))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.failed is not None
    assert host.failed.outcome is Outcome.INVALID


async def test_answer_that_is_not_streamed_is_understood() -> None:
    body = json.dumps(
        {
            "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1},
        }
    ).encode()
    host = FakeHost(lambda _: Say(body=body, content_type="application/json"))
    assert await host.run_job(request('[[step]]\nname="a"\nprompt="x"')) == "whole"


async def test_a_bug_of_ours_becomes_a_failed_step(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: StageCall) -> Say:
        raise KeyError("bug")

    host = FakeHost(broken)
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.failed is not None
    assert "internal error: KeyError" in host.failed.reason
    assert "step 'a'" in caplog.text


# --- tools --------------------------------------------------------------------------------------


async def test_tool_results_go_back_to_the_model() -> None:
    calls = [("word_count", '{"text": "a b c"}'), ("word_count", '{"text": "d"}')]
    host = FakeHost(in_turn(Say("let me see", calls, "tool_calls"), "three and one"), TOOLS)
    assert await host.run_job(request(TOOL)) == "three and one"
    first, second = host.stages.calls
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["word_count"]
    assert first.stage.tools_available == 1
    assert second.body["messages"][1:] == [
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {
                    "id": f"id-{index}",
                    "type": "function",
                    "function": {"name": "word_count", "arguments": arguments},
                }
                for index, (_, arguments) in enumerate(calls)
            ],
        },
        {"role": "tool", "tool_call_id": "id-0", "content": "3"},
        {"role": "tool", "tool_call_id": "id-1", "content": "1"},
    ]
    assert len(host.tools_ran) == 1
    assert (second.stage.position, second.stage.invocation_index) == (1, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "part"),
    [
        ("word_count", "{", "not JSON"),
        ("word_count", '{"text": 5}', "text: 5 is not of type 'string'"),
        ("word_count", "[]", "not of type 'object'"),
        ("rm", "{}", "there is no tool 'rm'"),
    ],
    ids=["no json", "wrong type", "no object", "unknown tool"],
)
async def test_bad_tool_call_is_told_to_the_model(name: str, arguments: str, part: str) -> None:
    host = FakeHost(in_turn(Say("", [(name, arguments)], "tool_calls"), "sorry"), TOOLS)
    assert await host.run_job(request(TOOL)) == "sorry"
    answer = host.stages.calls[1].body["messages"][-1]
    assert answer["role"] == "tool"
    assert part in json.loads(answer["content"])["error"]


async def test_in_the_last_round_tools_are_withheld() -> None:
    asks = Say("", [("word_count", '{"text": "a"}')], "tool_calls")
    host = FakeHost(in_turn(asks, asks, "at last"), TOOLS)
    assert await host.run_job(request(TOOL)) == "at last"
    choices = [call.body.get("tool_choice") for call in host.stages.calls]
    assert choices == [None, None, "none"]
    assert host.stages.calls[-1].stage.tool_choice == "none"


async def test_model_that_never_answers_fails_the_step() -> None:
    host = FakeHost(lambda _: Say("", [("word_count", '{"text": "a"}')], "tool_calls"), TOOLS)
    await host.run_job(request(TOOL))
    assert host.failed is not None
    assert "still asked for tools after 2 tool rounds" in host.failed.reason


async def test_tool_that_is_not_allowed_is_refused_before_anything_starts() -> None:
    host = FakeHost(echo, allow_tools=())
    with pytest.raises(ConfigError, match="does not allow") as caught:
        await host.run_job(request(TOOL))
    assert caught.value.hint is not None
    assert "[tools]" in caught.value.hint
    assert host.stages.calls == []


@pytest.mark.parametrize(
    ("given", "variables", "part"),
    [(None, {}, "needs an input"), ("x", {"no": 1}, "no variable 'no'")],
)
async def test_wrong_request_is_refused_before_anything_starts(
    given: object, variables: dict[str, object], part: str
) -> None:
    host = FakeHost(echo)
    with pytest.raises(ConfigError, match=part):
        await host.run_job(request(SERIAL, given, variables=variables))
    assert host.stages.calls == []


async def test_workflow_that_is_wrong_is_refused_however_it_was_made() -> None:
    spec = parse_workflow(SERIAL)
    step = replace(spec.steps["plan"], repeat=RepeatSpec("plan", "().__class__"))
    host = FakeHost(echo)
    with pytest.raises(ConfigError, match="__class__"):
        await host.run_job(JobRequest(replace(spec, steps={**spec.steps, "plan": step}), "x"))


async def test_missing_tool_parser_is_explained() -> None:
    message = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser'
    body = json.dumps({"error": {"message": message}}).encode()
    host = FakeHost(lambda _: Say(status=400, body=body), TOOLS)
    await host.run_job(request(TOOL))
    assert host.failed is not None
    assert "engine_args" in host.failed.reason


# --- progress, cancelling, resuming -------------------------------------------------------------


async def test_progress_tells_the_story_of_a_stage() -> None:
    host = FakeHost(in_turn("hello world"))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    assert host.kinds() == [
        ProgressKind.STEP_STARTED,
        ProgressKind.STAGE_STARTED,
        ProgressKind.FIRST_TOKEN,
        ProgressKind.TEXT,
        ProgressKind.TEXT,
        ProgressKind.STAGE_ENDED,
        ProgressKind.STEP_FINISHED,
    ]
    assert "".join(p.text for p in host.progress if p.kind is ProgressKind.TEXT) == "hello world"
    ended = host.progress[5].as_event()
    assert ended["output_tokens"] == 2
    assert ended["model"] == "smollm2"
    assert json.loads(json.dumps(ended)) == ended


async def test_finished_job_cancels_what_runs_in_mid_stream() -> None:
    host = FakeHost(lambda _: Say("some text", hold=True))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'), wait=False)
    async with asyncio.timeout(10):
        await host.stages.holding.wait()
    host.runner.finish(FinishJob(JOB, JobStatus.CANCELLED))
    async with asyncio.timeout(10):
        await host.stages.gone.wait()
    assert host.failed is None
    assert host.rows == []
    assert host.runner.output(JOB) is None


async def test_closing_posts_nothing_more() -> None:
    host = FakeHost(lambda _: Say("some text", hold=True))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'), wait=False)
    async with asyncio.timeout(10):
        await host.stages.holding.wait()
    await host.runner.aclose()
    assert host.failed is None
    assert host.stages.left == 1


def _row(step: str, output: str, visit: int = 1, item: int = 0, **fields: object) -> StepResultRow:
    values = {"num_items": 1, "finished_at": 0.0, **fields}
    return StepResultRow(str(JOB), step, visit, item, output=output, **values)  # type: ignore[arg-type]


async def test_resumed_job_runs_only_what_was_not_finished() -> None:
    host = FakeHost(in_turn("end"))
    assert await host.run_job(request(SERIAL), [_row("plan", "old plan")]) == "end"
    assert host.prompts() == ["old plan / 1"]
    assert host.stages.calls[0].stage.position == 1


async def test_resumed_fan_out_runs_the_missing_items() -> None:
    done = [
        _row("split", "a\nb\nc"),
        _row("work", "A", item=0, num_items=3),
        _row("work", "C", item=2, num_items=3),
    ]
    host = FakeHost(echo)
    assert await host.run_job(request(FAN_OUT), done) == "<3 A\n\n<1:b>\n\nC>"
    assert host.prompts()[0] == "1:b"


async def test_resumed_loop_goes_on_in_its_round() -> None:
    done = [_row("code", "v1"), _row("review", "bad", repeat=True), _row("code", "v2", visit=2)]
    host = FakeHost(in_turn("APPROVED", "shipped"))
    assert await host.run_job(request(LOOP), done) == "shipped"
    assert host.prompts() == ["review v2", "v2"]


async def test_result_is_recorded_before_its_successor_starts() -> None:
    host = FakeHost(in_turn("a", "b"))
    seen: list[tuple[str, Iterable[str]]] = []
    record = host.record

    def watch(row: StepResultRow, event: object) -> None:
        seen.append((row.step, [call.stage.step for call in host.stages.calls]))
        record(row, event)  # type: ignore[arg-type]

    host.runner._record = watch
    await host.run_job(request(SERIAL))
    assert seen == [("plan", ["plan"]), ("write", ["plan", "write"])]


async def test_effects_for_a_job_that_is_over_are_ignored() -> None:
    host = FakeHost(in_turn("a"))
    await host.run_job(request('[[step]]\nname="a"\nprompt="x"'))
    for effect in [*host.prepared, FinishJob(JOB, JobStatus.FINISHED)]:
        host.runner.carry_out(effect)
    assert host.failed is None
