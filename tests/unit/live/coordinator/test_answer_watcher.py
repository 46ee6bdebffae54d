"""Rules for what may be forwarded of an engine's answer, and when it counts as complete."""

import json

import pytest

from maestroctl.domain.messages import ABORT_COMMENT
from maestroctl.domain.outcome import Usage
from maestroctl.live.coordinator.answer_watcher import (
    BrokenAnswer,
    StreamWatcher,
    upstream_error,
    watch_whole,
)

CONTENT = b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
USAGE = (
    b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def feed_all(watcher: StreamWatcher, *chunks: bytes) -> bytes:
    return b"".join(watcher.feed(chunk) for chunk in chunks)


def test_content_passes_byte_for_byte() -> None:
    assert StreamWatcher(wants_usage=False).feed(CONTENT * 3) == CONTENT * 3


def test_usage_is_read_and_stripped_when_the_caller_did_not_ask() -> None:
    watcher = StreamWatcher(wants_usage=False)
    assert feed_all(watcher, CONTENT, USAGE, DONE) == CONTENT + DONE
    assert watcher.usage == Usage(prompt_tokens=7, output_tokens=2, cached_tokens=4)
    watcher.end()


def test_usage_passes_when_the_caller_asked() -> None:
    assert feed_all(StreamWatcher(wants_usage=True), CONTENT, USAGE, DONE) == CONTENT + USAGE + DONE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_events_cut_anywhere_give_the_same_bytes(size: int) -> None:
    whole = CONTENT + USAGE + DONE
    watcher = StreamWatcher(wants_usage=False)
    pieces = [whole[i : i + size] for i in range(0, len(whole), size)]
    assert feed_all(watcher, *pieces) == CONTENT + DONE
    assert watcher.complete


def test_null_usage_in_every_chunk_is_removed_for_callers_that_did_not_ask() -> None:
    chunk = CONTENT.replace(b"}\n\n", b',"usage":null}\n\n')
    assert StreamWatcher(wants_usage=False).feed(chunk) == CONTENT


def test_lines_that_end_with_cr_lf_are_events_too() -> None:
    crlf = [part.replace(b"\n", b"\r\n") for part in (CONTENT, USAGE, DONE)]
    watcher = StreamWatcher(wants_usage=False)
    assert feed_all(watcher, *crlf) == crlf[0] + crlf[2]
    assert watcher.complete


def test_a_stream_without_its_end_mark_is_broken() -> None:
    watcher = StreamWatcher(wants_usage=False)
    watcher.feed(CONTENT)
    with pytest.raises(BrokenAnswer, match="before it was complete"):
        watcher.end()


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_finish_is_never_forwarded(reason: str) -> None:
    chunk = b'data: {"choices":[{"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()
    with pytest.raises(BrokenAnswer, match=reason):
        StreamWatcher(wants_usage=False).feed(CONTENT + chunk)


def test_the_daemons_last_comment_names_outcome_and_reason() -> None:
    with pytest.raises(BrokenAnswer, match="memory was needed") as caught:
        StreamWatcher(wants_usage=False).feed(ABORT_COMMENT + b"preempted memory was needed\n\n")
    assert caught.value.code == "preempted"


def test_an_error_event_of_the_engine_breaks_the_answer() -> None:
    with pytest.raises(BrokenAnswer, match="boom"):
        StreamWatcher(wants_usage=False).feed(b'data: {"error": {"message": "boom"}}\n\n')


def test_text_that_looks_like_marks_is_only_text() -> None:
    text = '"usage":{ "finish_reason":"abort" [DONE] : maestro-aborted'
    event = {"choices": [{"delta": {"content": text}, "finish_reason": None}]}
    chunk = b"data: " + json.dumps(event).encode() + b"\n\n"
    watcher = StreamWatcher(wants_usage=False)
    assert watcher.feed(chunk) == chunk
    assert watcher.usage is None
    assert not watcher.complete


def test_responses_and_messages_streams_end_in_their_own_way() -> None:
    watcher = StreamWatcher(wants_usage=False)
    event = (
        b'event: response.completed\ndata: {"type":"response.completed","response":'
        b'{"usage":{"input_tokens":3,"output_tokens":4}}}\n\n'
    )
    assert watcher.feed(event) == event
    assert watcher.usage == Usage(3, 4)
    watcher.end()

    watcher = StreamWatcher(wants_usage=False)
    start = b'data: {"type":"message_start","message":{"usage":{"input_tokens":9}}}\n\n'
    delta = b'data: {"type":"message_delta","usage":{"output_tokens":5}}\n\n'
    stop = b'data: {"type":"message_stop"}\n\n'
    assert feed_all(watcher, start, delta, stop) == start + delta + stop
    assert watcher.usage == Usage(9, 5)
    watcher.end()


def test_a_whole_answer_gives_its_usage() -> None:
    body = (
        b'{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}'
    )
    assert watch_whole(body) == (Usage(1, 2), False)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":[{"finish_reason":"stop"},{"finish_reason":"tool_calls"}]}',
        b'{"stop_reason":"tool_use"}',
        b'{"output":[{"type":"message"},{"type":"function_call"}]}',
    ],
    ids=("chat", "messages", "responses"),
)
def test_a_whole_answer_says_that_it_asks_for_a_tool(body: bytes) -> None:
    assert watch_whole(body)[1]


@pytest.mark.parametrize(
    "last",
    [
        b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\n',
        b'data: {"type":"message_delta","delta":{"stop_reason":"tool_use"}}\n\n',
        b'data: {"type":"response.completed","response":{"output":[{"type":"function_call"}]}}\n\n',
    ],
    ids=("chat", "messages", "responses"),
)
def test_a_stream_says_that_it_asks_for_a_tool_and_counts_events(last: bytes) -> None:
    watcher = StreamWatcher(wants_usage=True)
    watcher.feed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    assert (watcher.tool_called, watcher.num_events) == (False, 1)
    watcher.feed(last)
    assert (watcher.tool_called, watcher.num_events) == (True, 2)


@pytest.mark.parametrize(
    "body", [b"<html>", b"", b"[1]", b'{"choices":[{"finish_reason":"abort"}]}'], ids=repr
)
def test_a_whole_answer_that_is_none_is_broken(body: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        watch_whole(body)


def test_plain_text_errors_of_an_engine_stay_readable() -> None:
    assert "500: Internal Server Error" in str(upstream_error(500, b"Internal Server Error"))
    assert "no text" in str(upstream_error(503, b""))
