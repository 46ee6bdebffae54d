from __future__ import annotations

import json
from typing import Any

import pytest

from maestroctl.testing.stub_engine.responses_shape import ResponsesShape, responses_messages
from maestroctl.testing.stub_engine.shapes import DONE_EVENT, ChatShape, CompletionShape, Shape
from maestroctl.testing.stub_engine.text import BadRequest

NAME = 'naïve "model"'


def events(shape: Shape, *deltas: str, rest: str = "", reason: str = "stop") -> list[bytes]:
    stream = list(shape.begin())
    stream += [shape.delta(text, index + 1) for index, text in enumerate(deltas)]
    stream += shape.end(rest, reason, len(deltas) + bool(rest))
    return stream


def parsed(stream: list[bytes]) -> list[dict[str, Any]]:
    assert stream[-1] == DONE_EVENT
    assert all(event.startswith(b"data: {") and event.endswith(b"}\n\n") for event in stream[:-1])
    return [json.loads(event[6:]) for event in stream[:-1]]


def chat(**kwargs: Any) -> ChatShape:
    return ChatShape("chatcmpl-1", NAME, 1700000000, 7, **kwargs)


def test_a_chat_stream_has_role_text_and_finish() -> None:
    chunks = parsed(events(chat(), 'a "b"', "\n日"))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": 'a "b"'},
        {"content": "\n日"},
        {"content": ""},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "stop"]
    assert {chunk["model"] for chunk in chunks} == {NAME}
    assert "system_fingerprint" in chunks[-1]


def test_a_cut_off_answer_has_its_last_text_in_the_finish_chunk() -> None:
    last = parsed(events(chat(), "a", rest=" b", reason="length"))[-1]["choices"][0]
    assert (last["delta"], last["finish_reason"]) == ({"content": " b"}, "length")


def test_usage_is_left_out_unless_asked_for() -> None:
    assert all("usage" not in chunk for chunk in parsed(events(chat(), "a")))


def test_asking_for_usage_adds_one_chunk_without_choices() -> None:
    chunks = parsed(events(chat(include_usage=True), "a", "b"))
    usage = {"prompt_tokens": 7, "total_tokens": 9, "completion_tokens": 2}
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], usage)
    assert all("usage" not in chunk for chunk in chunks[:-1])
    nulls = parsed(events(chat(include_usage=True, null_usage=True), "a"))
    assert all(chunk["usage"] is None for chunk in nulls[:-1])


def test_continuous_usage_counts_up() -> None:
    chunks = parsed(events(chat(include_usage=True, continuous=True), "a", "b"))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 2, 2]


def test_a_tool_call_is_streamed_by_name_then_arguments() -> None:
    shape = chat(tool_name="f", tool_call_id="call-1")
    chunks = parsed(events(shape, '{"a"', ": 1}", reason="tool_calls"))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    first = {"id": "call-1", "type": "function", "index": 0}
    assert deltas[1]["tool_calls"] == [{**first, "function": {"name": "f", "arguments": ""}}]
    assert deltas[2]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"a"'}}]
    assert deltas[-1] == {}
    message = shape.whole('{"a": 1}', "tool_calls", 2)["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}


def test_a_text_completion_has_no_opening_chunk() -> None:
    shape = CompletionShape("cmpl-1", NAME, 1700000000, 7, include_usage=True)
    chunks = parsed(events(shape, "a", rest="b", reason="length"))
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["a", "b"]
    assert shape.whole("ab", "length", 2)["choices"][0]["finish_reason"] == "length"


def responses(tool_name: str | None = None) -> ResponsesShape:
    return ResponsesShape("resp_1", NAME, 1700000000, 7, tool_name, {"input": "x"})


@pytest.mark.parametrize(("tool", "item"), [(None, "message"), ("f", "function_call")])
def test_a_responses_stream_is_numbered_and_ends_completed(tool: str | None, item: str) -> None:
    data = [json.loads(event.split(b"data: ")[1]) for event in events(responses(tool), "a", " b")]
    assert [one["sequence_number"] for one in data] == list(range(len(data)))
    assert (data[0]["type"], data[-1]["type"]) == ("response.created", "response.completed")
    assert data[-1]["response"]["output"][0]["type"] == item
    assert data[-1]["response"]["usage"]["total_tokens"] == 9


def test_a_cut_off_response_is_incomplete() -> None:
    response = responses().whole("a", "length", 1)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_responses_input_becomes_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    body = responses_messages({"input": items, "instructions": "be brief", "tools": tools})
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["f"]
    with pytest.raises(BadRequest):
        responses_messages({"input": 3})
