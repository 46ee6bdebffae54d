"""The descriptor of a request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.gateway.conversation import read_conversation
from maestroctl.gateway.descriptor import (
    START_TOKENS_PER_BYTE,
    JobPositions,
    TokenCounter,
    build_descriptor,
    measure_prompt,
    read_text,
)
from maestroctl.gateway.identity import Claims
from maestroctl.gateway.openai_schema import Api, parse_body


def describe(
    api: Api = Api.CHAT, *, claimed: Claims | None = None, **fields: Any
) -> StageDescriptor:
    document = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    body = parse_body(api, json.dumps(document).encode())
    conversation = read_conversation(body)
    return build_descriptor(
        stage_id=StageId("s"),
        job=JobId("j"),
        claims=claimed or Claims(),
        candidates=(ModelName("m"),),
        body=body,
        text=read_text(conversation),
        size=measure_prompt(body, conversation),
        ratio=0.25,
        position=(3, 1),
        now_s=100.0,
    )


def text_of(*messages: tuple[str, str]) -> StageText:
    document = {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages]}
    return read_text(read_conversation(parse_body(Api.CHAT, json.dumps(document).encode())))


def test_all_is_counted_by_the_ratio_and_what_predictors_read_by_characters() -> None:
    stage = describe(
        messages=[
            {"role": "system", "content": "s" * 1400},
            {"role": "user", "content": "o" * 40_000},
            {"role": "assistant", "content": "a" * 40},
            {"role": "user", "content": "é" * 40},
        ]
    )
    assert stage.prompt_tokens == PromptTokens(system=250, user=500, full=10_380)


def test_tools_count_into_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in ("b", "a")]
    stage = describe(tools=tools)
    assert stage.tools_available == 2
    assert stage.prompt_tokens.full > describe().prompt_tokens.full + 20
    assert stage.tools_digest == describe(tools=tools[::-1]).tools_digest != ""


def test_position_deadline_and_claims() -> None:
    stage = describe(claimed=Claims(role="coder", workflow="w", deadline_s=5.0))
    assert (stage.position, stage.invocation_index, stage.step) == (3, 1, "")
    assert stage.place == "call-3"
    assert (stage.deadline_s, stage.role, stage.workflow) == (105.0, "coder", "w")
    assert describe(claimed=Claims(stage="plan")).step == "plan"


@pytest.mark.parametrize(
    ("choice", "seen"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "function": {"name": "f"}}, "f"),
        ({"type": "tool", "name": "g"}, "g"),
        ({"type": "any"}, "required"),
        ({"type": "auto"}, "auto"),
        ({}, "auto"),
    ],
    ids=str,
)
def test_tool_choice(choice: Any, seen: str) -> None:
    assert describe(tool_choice=choice).tool_choice == seen


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": None}, None),
    ],
    ids=str,
)
def test_output_limit(fields: dict[str, Any], limit: int | None) -> None:
    assert describe(**fields).max_tokens == limit


def test_response_format_and_reasoning() -> None:
    assert describe(response_format={"type": "json_schema"}).response_format == "json_schema"
    assert describe(response_format={"type": 3}).response_format == "text"
    assert describe(reasoning_effort="high").reasoning == "high"
    assert describe(chat_template_kwargs={"enable_thinking": False}).reasoning == "disabled"
    stage = describe(
        Api.RESPONSES,
        input="x",
        text={"format": {"type": "json_object"}},
        reasoning={"effort": "low"},
    )
    assert (stage.response_format, stage.reasoning) == ("json_object", "low")
    thinking = {"type": "enabled", "budget_tokens": 9}
    assert describe(Api.MESSAGES, thinking=thinking).reasoning == "enabled"


def test_token_ids_are_counted_exactly() -> None:
    assert describe(Api.COMPLETIONS, prompt=[1, 2, 3]).prompt_tokens.full == 3
    assert describe(Api.EMBEDDINGS, input=[[1], [2, 3]]).prompt_tokens.full == 3


def test_text_is_split_for_the_predictors() -> None:
    text = text_of(("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three"))
    assert text == StageText("s", "\nuser: one\nassistant: two\nuser: three")
    text = text_of(("user", "q"), ("assistant", "so"), ("tool", "result"))
    assert text == StageText("", "\nuser: q\nassistant: so\ntool: result")
    assert text_of(("assistant", "only")) == StageText("", "\nassistant: only")
    assert text_of(("user", "alone")) == StageText("", "alone")


@pytest.mark.parametrize("arguments", [{"id": "é"}, {}, None])
def test_parsed_arguments_read_as_their_text(arguments: Any) -> None:
    block = {"type": "tool_use", "id": "x", "name": "find", "input": arguments}
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [block]}]
    document = {"model": "m", "max_tokens": 5, "messages": messages}
    body = parse_body(Api.MESSAGES, json.dumps(document).encode())
    written = json.dumps(arguments or {}, ensure_ascii=False)
    text = read_text(read_conversation(body))
    assert text.tail == f"\nuser: q\nassistant: find({written})"


def test_only_the_end_of_a_long_conversation_is_kept() -> None:
    turns = [("user", "o" * 5000), *[("assistant", f"answer {n} " * 9) for n in range(90)]]
    whole = "".join(f"\n{role}: {said}" for role, said in turns)
    assert text_of(*turns).tail == whole[-2000:]


def test_ratio_starts_at_a_quarter_and_follows_usage() -> None:
    counter = TokenCounter()
    assert counter.tokens_per_byte("m", "r") == START_TOKENS_PER_BYTE
    counter.learn("m", "r", 1000, 500)
    assert counter.tokens_per_byte("m", "r") == 0.5
    assert counter.tokens_per_byte("m", "new role") == 0.5
    assert counter.tokens_per_byte("other", "r") == START_TOKENS_PER_BYTE
    for _ in range(50):
        counter.learn("m", "r", 1000, 200)
    assert counter.tokens_per_byte("m", "r") == pytest.approx(0.2, abs=1e-3)


def test_ratio_ignores_nonsense() -> None:
    counter = TokenCounter()
    counter.learn("m", "r", 0, 10)
    counter.learn("m", "r", 10, 0)
    assert counter.tokens_per_byte("m", "r") == START_TOKENS_PER_BYTE
    counter.learn("m", "r", 1, 10**9)
    assert counter.tokens_per_byte("m", "r") <= 2


def test_ratios_are_bounded() -> None:
    counter = TokenCounter()
    for i in range(10_000):
        counter.learn("m", f"role{i}", 100, 25)
    assert len(counter._ratios) <= 4096


def test_calls_of_a_job_are_counted_by_role() -> None:
    positions = JobPositions()
    seen = [positions.count(JobId("j"), role, 0.0) for role in ("a", "b", "a")]
    assert seen == [(0, 0), (1, 0), (2, 1)]
    assert positions.count(JobId("other"), "a", 0.0) == (0, 0)
    assert positions.count(JobId("j"), "a", 5000.0) == (0, 0)


def test_continued_job_had_a_call_even_if_it_was_not_counted() -> None:
    positions = JobPositions()
    assert positions.count(JobId("j"), "a", 0.0, continued=True) == (1, 1)
    assert positions.count(JobId("j"), "b", 0.0, continued=True) == (2, 0)


def test_jobs_are_bounded() -> None:
    positions = JobPositions(max_jobs=10)
    for i in range(100):
        positions.count(JobId(str(i)), "a", 0.0)
    assert len(positions) == 10
