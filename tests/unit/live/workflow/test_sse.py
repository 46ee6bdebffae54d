"""Event streams: any cut of the bytes gives the same answer, and half an answer is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.domain.outcome import Usage
from maestroctl.errors import UpstreamFailed
from maestroctl.live.workflow.sse import (
    Completion,
    CompletionAssembler,
    SseParser,
    ToolCallRequest,
    error_text,
)


def parse(*chunks: bytes) -> list[str]:
    parser = SseParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.end()


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b": heartbeat\n\ndata: a\n\n", ["a"]),
        (b"event: x\nid: 7\ndata: a\ndata: b\n\n", ["a\nb"]),
        (b"data:a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"database: no\n\n", []),
        (b"data: no end", ["no end"]),
        (b"\n\n\n", []),
    ],
    ids=repr,
)
def test_events_of_a_stream(raw: bytes, events: list[str]) -> None:
    assert parse(raw) == events
    assert parse(*[raw[i : i + 1] for i in range(len(raw))]) == events


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), max_size=5
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
)
def test_any_cut_gives_the_same_events(texts: list[str], end: str, cuts: list[int]) -> None:
    raw = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    chunks, start = [], 0
    while start < len(raw):
        size = cuts[len(chunks) % len(cuts)]
        chunks.append(raw[start : start + size])
        start += size
    assert parse(*chunks) == texts


def test_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    parser = SseParser()
    for _ in range(16):
        parser.feed(b"x" * (1 << 20))
    with pytest.raises(UpstreamFailed, match="too large"):
        parser.feed(b"x")


# --- completions --------------------------------------------------------------------------------


def chunk(delta: dict[str, Any], finish: str | None = None, **fields: Any) -> str:
    return json.dumps(
        {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **fields}
    )


def assemble(*events: str) -> Completion:
    assembler = CompletionAssembler()
    for event in events:
        assembler.add(event)
    return assembler.finish()


def test_text_adds_up() -> None:
    whole = assemble(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
        "[DONE]",
    )
    assert whole == Completion("Hello", (), "stop", Usage(7, 2))


def test_tool_calls_add_up_by_index() -> None:
    def part(index: int, **function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, "function": function}]}

    whole = assemble(
        chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "two"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "one"}}]}),
        chunk(part(0, arguments='{"x"')),
        chunk(part(1, arguments="{}")),
        chunk(part(0, arguments=": 1}")),
        chunk({}, "tool_calls"),
    )
    assert whole.tool_calls == (
        ToolCallRequest("a", "one", '{"x": 1}'),
        ToolCallRequest("b", "two", "{}"),
    )


def test_call_without_an_id_gets_one() -> None:
    whole = assemble(chunk({"tool_calls": [{"index": 0, "function": {"name": "f"}}]}, "tool_calls"))
    assert whole.tool_calls == (ToolCallRequest("call_0", "f", ""),)


@pytest.mark.parametrize(
    "events",
    [
        [chunk({"content": "a"})],
        [chunk({"content": "a"}), "[DONE]"],
        [chunk({"content": "a"}, "abort")],
        [chunk({"content": "a"}, "error")],
        ['{"error": {"message": "out of memory"}}'],
        ["not json"],
        ["[1]"],
        [],
    ],
    ids=["cut", "done without reason", "abort", "error", "error event", "no json", "list", "empty"],
)
def test_half_an_answer_is_no_answer(events: list[str]) -> None:
    with pytest.raises(UpstreamFailed):
        assemble(*events)


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "tool_calls"])
def test_good_ends(finish: str) -> None:
    assert assemble(chunk({"content": "a"}, finish)).finish_reason == finish


def test_other_choices_are_not_mixed_in() -> None:
    other = json.dumps({"choices": [{"index": 1, "delta": {"content": "no"}}]})
    assert assemble(chunk({"content": "yes"}), other, chunk({}, "stop")).text == "yes"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"error": {"message": "m"}}, "m"),
        ({"error": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"message": "m"}, "m"),
        ("plain", "plain"),
    ],
    ids=repr,
)
def test_error_bodies_of_any_shape(document: Any, text: str) -> None:
    assert error_text(document) == text


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "tool_calls", "index", "function", "usage"]
            ),
            inner,
        )
    ),
)


@given(_JSON)
def test_no_document_breaks_the_assembler(document: Any) -> None:
    assembler = CompletionAssembler()
    try:
        assembler.add(json.dumps(document))
        assembler.add(chunk({}, "stop"))
        assembler.finish()
    except UpstreamFailed:
        pass
