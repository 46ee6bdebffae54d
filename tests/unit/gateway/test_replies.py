"""Answers put together again: whole, and from streams cut anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.gateway.conversation import Turn
from maestroctl.gateway.openai_schema import Api
from maestroctl.gateway.replies import FOLD_BYTES, MAX_BYTES, StreamAssembler, read_answer
from tests.gateway_support import chat_document, chat_events, sse


def assemble(api: Api, *chunks: bytes) -> list[list[Turn]]:
    assembler = StreamAssembler(api)
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.finish().alternatives


def call_delta(index: int, **fields: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, **fields}]}}]})


def test_stream_and_whole_answer_are_the_same_turn() -> None:
    whole = read_answer(Api.CHAT, json.dumps(chat_document("hello wörld")).encode())
    stream = assemble(Api.CHAT, *chat_events(["hello ", "wörld"]))
    assert [[t.digest() for t in turns] for turns in whole.alternatives] == [
        [t.digest() for t in turns] for turns in stream
    ]


def test_tool_calls_that_come_in_pieces() -> None:
    turns = assemble(
        Api.CHAT,
        call_delta(0, id="c1", function={"name": "f", "arguments": ""}),
        call_delta(0, function={"arguments": '{"a":'}),
        call_delta(1, id="c2", function={"name": "g", "arguments": "{}"}),
        call_delta(0, function={"arguments": "1}"}),
        b"data: [DONE]\n\n",
    )
    assert turns == [[Turn("assistant", "", (("f", '{"a":1}'), ("g", "{}")), ("c1", "c2"))]]


@given(st.data())
def test_chunk_borders_do_not_matter(data: st.DataObject) -> None:
    stream = b"".join(chat_events(["a", "é€", "c" * 50]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert assemble(Api.CHAT, *pieces) == [[Turn("assistant", "aé€" + "c" * 50)]]


def test_long_stream_is_folded_on_the_way() -> None:
    texts = ["x" * 100] * (FOLD_BYTES // 50)
    assert assemble(Api.CHAT, *chat_events(texts)) == [[Turn("assistant", "".join(texts))]]


def test_carriage_returns_and_comments_are_understood() -> None:
    stream = b": waiting\r\n\r\n" + b"".join(chat_events(["a", "b"])).replace(b"\n", b"\r\n")
    assert assemble(Api.CHAT, stream) == [[Turn("assistant", "ab")]]


@pytest.mark.parametrize(
    "chunks",
    [
        [b"data: {broken\n\n"],
        [b"data: [1]\n\n"],
        [b'data: {"choices": 3}\n\n'],
        [b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n'],
        [b"x" * (MAX_BYTES + 1)],
        [b'data: {"choices":[]}\n\n' + b"y" * FOLD_BYTES] * (MAX_BYTES // FOLD_BYTES + 2),
    ],
    ids=["json", "list", "type", "utf8", "endless line", "too long"],
)
def test_unreadable_stream_is_not_noted(chunks: list[bytes]) -> None:
    assert assemble(Api.CHAT, *chunks) == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"choices": [{}]}', b'{"choices": 1}', b"x" * (MAX_BYTES + 1)]
)
@pytest.mark.parametrize("api", Api)
def test_odd_whole_answers_are_survived(api: Api, body: bytes) -> None:
    assert not any(turn.text for turns in read_answer(api, body).alternatives for turn in turns)


def test_every_choice_is_an_alternative() -> None:
    choices = [{"message": {"role": "assistant", "content": text}} for text in ("a", "b")]
    body = json.dumps({"choices": choices}).encode()
    assert len(read_answer(Api.CHAT, body).alternatives) == 2


_OUTPUT = [
    {"type": "reasoning", "id": "rs"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
]


def test_responses_stream_ends_with_the_whole_answer() -> None:
    response = {"id": "resp_1", "output": _OUTPUT}
    assembler = StreamAssembler(Api.RESPONSES)
    assembler.feed(sse({"type": "response.output_text.delta", "delta": "hi"}, "x"))
    assembler.feed(sse({"type": "response.completed", "response": response}, "response.completed"))
    stream = assembler.finish()
    assert stream == read_answer(Api.RESPONSES, json.dumps(response).encode())
    assert stream.ids == ("resp_1",)
    assert [turn.ids for turn in stream.alternatives[0]] == [(), ("c1",)]


def test_messages_stream_gives_the_blocks() -> None:
    content = [
        {"type": "text", "text": "let me"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
    ]
    whole = read_answer(Api.MESSAGES, json.dumps({"content": content}).encode())

    def start(index: int, block: dict[str, Any]) -> bytes:
        return sse({"type": "content_block_start", "index": index, "content_block": block})

    def delta(index: int, **fields: Any) -> bytes:
        return sse({"type": "content_block_delta", "index": index, "delta": fields})

    stream = assemble(
        Api.MESSAGES,
        sse({"type": "message_start", "message": {"id": "m"}}),
        start(0, {"type": "text", "text": ""}),
        delta(0, type="text_delta", text="let "),
        delta(0, type="text_delta", text="me"),
        start(1, {"type": "tool_use", "id": "t1", "name": "f", "input": {}}),
        delta(1, type="input_json_delta", partial_json='{"a"'),
        delta(1, type="input_json_delta", partial_json=": 1}"),
        sse({"type": "message_stop"}),
    )
    assert [t.digest() for t in stream[0]] == [t.digest() for t in whole.alternatives[0]]
    assert stream[0][0].ids == ("t1",)
