from __future__ import annotations

import json
from typing import Any

import pytest

from maestroctl.testing.stub_engine.text import (
    WORDS,
    BadRequest,
    Limits,
    OutputPlan,
    count_chat_tokens,
    count_tokens,
    plan_chat,
    plan_completion,
    token_ids,
)

LIMITS = Limits(model="m", max_model_len=200)
TOOL = {"type": "function", "function": {"name": "search", "parameters": {}}}


def chat(text: str, *more: dict[str, Any], limits: Limits = LIMITS, **body: Any) -> OutputPlan:
    messages = [{"role": "user", "content": text}, *more]
    return plan_chat({"messages": messages, **body}, limits)


def test_there_are_64_different_words() -> None:
    assert len(set(WORDS)) == 64


def test_the_same_prompt_gives_the_same_text_and_another_model_another() -> None:
    assert chat("hello").tokens == chat("hello").tokens
    assert chat("hello").tokens != chat("hello!").tokens
    assert chat("hello").tokens != chat("hello", limits=Limits("other", 200)).tokens


def test_sampling_parameters_do_not_change_the_text() -> None:
    assert chat("hello", temperature=1.3, seed=7).tokens == chat("hello").tokens


@pytest.mark.parametrize(
    "text", ["plain text", "zwei  Leerzeichen\n\nünd mehr ", "", " x", "日本 語"]
)
def test_echo_gives_back_exactly_what_follows(text: str) -> None:
    plan = chat(f"something first. ECHO: {text}")
    assert "".join(plan.tokens) == text
    assert plan.finish_reason == "stop"


@pytest.mark.parametrize("count", [0, 1, 40])
def test_tokens_gives_exactly_that_many(count: int) -> None:
    plan = chat(f"please TOKENS {count}")
    assert len(plan.tokens) == count
    assert plan.finish_reason == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_token_limit_cuts_with_reason_length(name: str) -> None:
    limit: dict[str, Any] = {name: 4}
    plan = chat("TOKENS 10", **limit)
    assert plan.tokens == chat("TOKENS 10").tokens[:4]
    assert plan.finish_reason == "length"
    assert chat("TOKENS 4", **limit).finish_reason == "stop"


def test_the_context_cuts_what_no_limit_does() -> None:
    plan = chat("TOKENS 5000")
    assert len(plan.tokens) + plan.prompt_tokens == 200
    assert plan.finish_reason == "length"


def test_ignoring_the_end_fills_the_limit() -> None:
    plan = chat("TOKENS 2", ignore_eos=True, max_tokens=9)
    assert (len(plan.tokens), plan.finish_reason) == (9, "length")


def test_a_prompt_longer_than_the_context_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="maximum context length is 200 tokens") as caught:
        chat("x" * 1000)
    assert caught.value.param == "input_tokens"


@pytest.mark.parametrize("value", [0, -1, 201, "7", True, 1.5])
def test_an_absurd_token_limit_is_a_bad_request(value: Any) -> None:
    with pytest.raises(BadRequest):
        chat("hi", max_tokens=value)


def test_more_than_one_choice_is_a_bad_request() -> None:
    with pytest.raises(BadRequest, match="n must be 1"):
        chat("hi", n=2)


def test_a_stop_string_ends_the_text_before_it() -> None:
    plan = chat("ECHO: one two three", stop=["three", "two"])
    assert "".join(plan.tokens) == "one "
    assert plan.finish_reason == "stop"


def test_a_written_call_becomes_a_tool_call_only_when_tools_are_given() -> None:
    text = 'CALL search {"q": "a {b}"} please'
    plan = chat(text, tools=[TOOL])
    assert plan.tool_name == "search"
    assert json.loads("".join(plan.tokens)) == {"q": "a {b}"}
    assert plan.finish_reason == "tool_calls"
    assert chat(text).tool_name is None
    assert chat(text, tools=[TOOL], tool_choice="none").tool_name is None


def test_rounds_of_one_turn_take_the_calls_in_order_and_then_answer() -> None:
    text = 'CALL search {"n": 1} CALL search {"n": 2} ECHO: done'
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    result = {"role": "tool", "content": "r"}
    second = chat(text, call, result, tools=[TOOL])
    assert json.loads("".join(second.tokens)) == {"n": 2}
    last = chat(text, call, result, call, result, tools=[TOOL])
    assert last.tool_name is None
    assert "".join(last.tokens) == "done"


def test_a_required_tool_is_called_with_the_smallest_arguments_its_schema_allows() -> None:
    properties = {"s": {"type": "string"}, "n": {"type": "integer"}, "e": {"enum": ["u"]}, "o": {}}
    schema = {"type": "object", "properties": properties, "required": ["s", "n", "e"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    plan = chat("hello", tools=[tool], tool_choice="required")
    assert plan.tool_name == "f"
    assert json.loads("".join(plan.tokens)) == {"s": "x", "n": 1, "e": "u"}


def test_a_named_tool_is_called_and_ends_with_stop() -> None:
    choice = {"type": "function", "function": {"name": "search"}}
    plan = chat("hello", tools=[TOOL], tool_choice=choice)
    assert (plan.tool_name, plan.finish_reason) == ("search", "stop")


def test_weights_that_were_not_reloaded_answer_noise() -> None:
    noise = Limits("m", 200, noise=True)
    assert "".join(chat("ECHO: hello", limits=noise).tokens) != "hello"


def test_a_prompt_token_is_four_bytes() -> None:
    assert [count_tokens(text) for text in ("", "abcd", "abcde", "üüü")] == [0, 1, 2, 2]
    assert len(token_ids("abcde")) == 2
    parts = [{"type": "text", "text": "abcd"}, {"type": "image_url"}]
    assert count_chat_tokens([{"role": "user", "content": parts}]) == 5


def test_a_completion_has_16_tokens_unless_told_otherwise() -> None:
    assert plan_completion({}, "TOKENS 40", LIMITS).finish_reason == "length"
    assert len(plan_completion({}, "TOKENS 40", LIMITS).tokens) == 16
    assert "".join(plan_completion({}, "ECHO: ab", LIMITS).tokens) == "ab"
