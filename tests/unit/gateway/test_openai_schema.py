"""Which bodies pass, which do not, and which field is named."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maestroctl.errors import InvalidRequest
from maestroctl.gateway.conversation import read_conversation
from maestroctl.gateway.openai_schema import Api, parse_body

_OK: dict[Api, dict[str, Any]] = {
    Api.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    Api.COMPLETIONS: {"model": "m", "prompt": "hi"},
    Api.EMBEDDINGS: {"model": "m", "input": "hi"},
    Api.RESPONSES: {"model": "m", "input": "hi"},
    Api.MESSAGES: {
        "model": "m",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    },
}


def parse(api: Api, document: Any) -> Any:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_body(api, data)


def failing_param(api: Api, document: Any) -> str | None:
    with pytest.raises(InvalidRequest) as caught:
        parse(api, document)
    assert caught.value.http_status == 400
    return caught.value.param


@pytest.mark.parametrize("api", Api)
def test_smallest_body_passes(api: Api) -> None:
    body = parse(api, _OK[api])
    assert body.model == "m"
    assert not body.stream


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"  \n",
        b"{",
        b'{"model": "m", "messages": [{"role": "us',
        b"hello",
        b"[]",
        b'"text"',
        b"3",
        b"null",
        b'{"model": "m",}',
        b'{"model": NaN}',
        b"\xff\xfe{}",
        b'{"model": "m", "x": "\xff", "messages": [{"role": "user"}]}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"\x00" * 100,
    ],
    ids=range(16),
)
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    assert failing_param(Api.CHAT, data) is None


CHAT_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"model": 3}, "model"),
    ({"model": None}, "model"),
    ({"model": ["m"]}, "model"),
    ({"model": ""}, "model"),
    ({"model": "  "}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [3]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": 3}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user"}, {"role": "user", "content": {}}]}, "messages[1].content"),
    ({"messages": [{"role": "a", "tool_calls": "x"}]}, "messages[0].tool_calls"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": []}, "max_completion_tokens"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": True}, "stream_options"),
    ({"tools": {}}, "tools"),
    ({"tools": [1]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": "f"}]}, "tools[0].function"),
    ({"tool_choice": 3}, "tool_choice"),
    ({"stop": 3}, "stop"),
    ({"stop": [3]}, "stop[0]"),
    ({"n": 0}, "n"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": {}}, "top_p"),
    ({"response_format": "json"}, "response_format"),
    ({"metadata": []}, "metadata"),
    ({"maestro": "job"}, "maestro"),
    ({"extra_body": 1}, "extra_body"),
]


@pytest.mark.parametrize(("change", "param"), CHAT_ERRORS, ids=lambda v: json.dumps(v)[:60])
def test_chat_error_names_the_field(change: dict[str, Any], param: str) -> None:
    assert failing_param(Api.CHAT, {**_OK[Api.CHAT], **change}) == param


OTHER_ERRORS: list[tuple[Api, dict[str, Any], str]] = [
    (Api.COMPLETIONS, {"prompt": 3}, "prompt"),
    (Api.COMPLETIONS, {"prompt": []}, "prompt"),
    (Api.COMPLETIONS, {"prompt": ["a", 3]}, "prompt"),
    (Api.COMPLETIONS, {"prompt": [[1], []]}, "prompt"),
    (Api.COMPLETIONS, {"prompt": [[1], "a"]}, "prompt"),
    (Api.COMPLETIONS, {"prompt": [True]}, "prompt"),
    (Api.COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
    (Api.EMBEDDINGS, {"input": None}, "input"),
    (Api.EMBEDDINGS, {"input": {}}, "input"),
    (Api.RESPONSES, {"input": 3}, "input"),
    (Api.RESPONSES, {"input": []}, "input"),
    (Api.RESPONSES, {"input": [3]}, "input[0]"),
    (Api.RESPONSES, {"instructions": 3}, "instructions"),
    (Api.RESPONSES, {"max_output_tokens": 0}, "max_output_tokens"),
    (Api.MESSAGES, {"messages": [{"role": "user"}]}, "messages[0]"),
    (Api.MESSAGES, {"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
    (Api.MESSAGES, {"system": 3}, "system"),
    (Api.MESSAGES, {"stop_sequences": "x"}, "stop_sequences"),
]


@pytest.mark.parametrize(("api", "change", "param"), OTHER_ERRORS, ids=str)
def test_error_of_other_apis_names_the_field(api: Api, change: dict[str, Any], param: str) -> None:
    assert failing_param(api, {**_OK[api], **change}) == param


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("name", ["model", "content"])
def test_missing_field_is_named(api: Api, name: str) -> None:
    name = api.content_field if name == "content" else name
    document = {key: value for key, value in _OK[api].items() if key != name}
    assert failing_param(api, document) == name


@pytest.mark.parametrize(
    "prompt",
    ["x", ["x", "y"], [1, 2], [[1, 2], [3]], ""],
    ids=["text", "texts", "ids", "lists", "empty"],
)
def test_every_form_of_prompt_passes(prompt: Any) -> None:
    assert parse(Api.COMPLETIONS, {"model": "m", "prompt": prompt}).content == prompt


def test_completions_may_ask_for_no_tokens() -> None:
    assert (
        parse(Api.COMPLETIONS, {**_OK[Api.COMPLETIONS], "max_tokens": 0}).known["max_tokens"] == 0
    )


def test_null_of_an_optional_field_is_as_if_absent() -> None:
    body = parse(Api.CHAT, {**_OK[Api.CHAT], "max_tokens": None, "tools": None, "stream": None})
    assert not body.known
    assert body.fields["max_tokens"] is None


def test_unknown_fields_keep_their_bytes() -> None:
    data = (
        b'{"model":"m","messages":[{"role":"user","content":"h\\u00e9"}],'
        b'"big":123456789012345678901234567890,"precise":0.1000000000000000055511151231257827,'
        b'"huge":1e400,"digits":' + b"7" * 6000 + b',"nested":{"b":[1, {"a" : null}]},'
        b'"temperature":1.0,"text":7,"system":{}}'
    )
    encoded = msgspec.json.encode(parse(Api.CHAT, data).fields)
    for piece in (
        b'"big":123456789012345678901234567890',
        b'"precise":0.1000000000000000055511151231257827',
        b'"huge":1e400',
        b'"digits":' + b"7" * 6000,
        b'"nested":{"b":[1, {"a" : null}]}',
        b'"content":"h\\u00e9"',
        b'"temperature":1.0',
    ):
        assert piece in encoded


def test_field_of_another_api_is_unknown_here() -> None:
    assert (
        parse(Api.EMBEDDINGS, {**_OK[Api.EMBEDDINGS], "tools": 3, "stream": True}).stream is False
    )


def test_last_of_two_equal_keys_counts_everywhere() -> None:
    body = parse(Api.COMPLETIONS, b'{"model":"a","model":"b","prompt":"x"}')
    assert body.model == "b"
    assert msgspec.json.encode(body.fields).count(b'"model"') == 1


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
_names = st.sampled_from(
    [
        "model",
        "messages",
        "prompt",
        "input",
        "stream",
        "max_tokens",
        "tools",
        "tool_choice",
        "stop",
        "metadata",
        "maestro",
        "system",
        "role",
        "content",
        "type",
        "text",
        "name",
        "output",
        "arguments",
        "call_id",
    ]
)


@st.composite
def _documents(draw: st.DrawFn) -> bytes:
    inner = st.recursive(
        _json,
        lambda x: st.lists(x, max_size=3) | st.dictionaries(_names, x, max_size=4),
        max_leaves=8,
    )
    document = draw(st.dictionaries(_names, inner, max_size=6))
    if draw(st.booleans()):
        document["model"] = "m"
    return json.dumps(document).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("api", Api)
@given(data=_documents() | st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_any_body_passes_or_is_the_callers_fault(api: Api, data: bytes) -> None:
    try:
        body = parse_body(api, data)
    except InvalidRequest:
        return
    read_conversation(body)
    msgspec.json.encode(body.fields)
