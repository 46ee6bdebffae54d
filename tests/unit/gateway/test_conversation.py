"""Conversations of the three dialects, and what makes two turns the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from maestroctl.gateway.conversation import Conversation, Turn, read_conversation
from maestroctl.gateway.openai_schema import Api, parse_body


def read(api: Api, **fields: Any) -> Conversation:
    return read_conversation(parse_body(api, json.dumps({"model": "m", **fields}).encode()))


def chat_turn(**message: Any) -> Turn:
    return read(Api.CHAT, messages=[message]).turns[0]


def test_system_and_developer_messages_are_kept_apart() -> None:
    conversation = read(
        Api.CHAT,
        messages=[
            {"role": "system", "content": "a"},
            {"role": "user", "content": "q"},
            {"role": "developer", "content": "b"},
        ],
    )
    assert conversation.system == "a\nb"
    assert [turn.text for turn in conversation.turns] == ["q"]


def test_text_parts_are_the_same_as_one_text() -> None:
    whole = chat_turn(role="user", content="hello world")
    parts = chat_turn(
        role="user",
        content=[{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}],
    )
    assert whole.digest() == parts.digest()


def test_arguments_are_compared_parsed_and_names_ignored() -> None:
    def call(arguments: Any, **more: Any) -> int:
        function = {"name": "f", "arguments": arguments}
        return chat_turn(
            role="assistant", tool_calls=[{"id": "c1", "function": function}], **more
        ).digest()

    first = call('{"a":1,"b":[2]}')
    assert first == call('{ "b": [2], "a": 1 }', name="agent", content=None)
    assert first == call('{"a":1,"b":[2]}', content="")
    assert first != call('{"a":2,"b":[2]}')


def test_broken_arguments_are_compared_as_text() -> None:
    def call(arguments: str) -> int:
        function = {"name": "f", "arguments": arguments}
        return chat_turn(role="assistant", tool_calls=[{"function": function}]).digest()

    assert call('{"a":') == call('{"a":')
    assert call('{"a":') != call('{"b":')
    assert call("[" * 5000) == call("[" * 5000)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "b"}),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "y"}}]},
        ),
    ],
    ids=["role", "text", "image"],
)
def test_different_turns_differ(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert chat_turn(**one).digest() != chat_turn(**other).digest()


def test_ids_of_calls_and_of_results_are_seen() -> None:
    conversation = read(
        Api.CHAT,
        messages=[
            {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
        ],
    )
    assert [turn.ids for turn in conversation.turns] == [("c1", "c2"), ("c1",)]


def test_items_of_the_responses_api() -> None:
    conversation = read(
        Api.RESPONSES,
        instructions="be kind",
        previous_response_id="resp_1",
        input=[
            {"role": "system", "content": "sys"},
            {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "r"},
        ],
    )
    assert conversation.system == "be kind\nsys"
    assert conversation.ids == ("resp_1",)
    assert [(turn.role, turn.text) for turn in conversation.turns] == [
        ("user", "q"),
        ("assistant", ""),
        ("tool", "r"),
    ]


def test_blocks_of_the_messages_api() -> None:
    conversation = read(
        Api.MESSAGES,
        system=[{"type": "text", "text": "be kind"}],
        messages=[
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm"},
                    {"type": "text", "text": "let me see"},
                    {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"text": "r"}]},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    )
    assert conversation.system == "be kind"
    assert [(turn.role, turn.text, turn.ids) for turn in conversation.turns] == [
        ("assistant", "let me see", ("t1",)),
        ("tool", "r", ("t1",)),
        ("user", "and?", ()),
    ]


@pytest.mark.parametrize(
    ("prompt", "text", "count"),
    [("a", "a", 0), (["a", "b"], "a\nb", 0), ([1, 2, 3], None, 3), ([[1, 2], [3]], None, 3)],
    ids=["text", "texts", "ids", "lists"],
)
def test_prompts(prompt: Any, text: str | None, count: int) -> None:
    conversation = read(Api.COMPLETIONS, prompt=prompt)
    assert conversation.num_token_ids == count
    assert [turn.text for turn in conversation.turns] == ([] if text is None else [text])
