"""Watches the answer of an engine on its way to the caller.

Bytes are forwarded as they arrive. What has to be known of them: exact token counts (`usage`, asked
for on every call and stripped for callers that did not ask), and whether the answer is complete. An
engine answers an aborted request with status 200 and ``finish_reason: abort``, and a daemon that
has to end a stream says so in a comment of its own: neither may look like a normal end.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from maestroctl.domain.messages import ABORT_COMMENT
from maestroctl.domain.outcome import Usage
from maestroctl.errors import RequestError, UpstreamFailed

_EVENT_END = b"\n\n"
_CRLF_EVENT_END = b"\r\n\r\n"
_INTERESTING = re.compile(
    rb'"usage"\s*:\s*\{|"finish_reason"\s*:\s*"(?:abort|error|tool_calls)"'
    rb"|^data: ?\[DONE\]|^: maestro-aborted"
    rb'|"type"\s*:\s*"(?:response\.(?:completed|incomplete|failed)|message_stop|message_delta'
    rb'|message_start|error)"|^data: ?\{"error"',
    re.MULTILINE,
)
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null')
_BAD_FINISH = ("abort", "error")
_TOOL_CALLS, _TOOL_USE, _FUNCTION_CALL = "tool_calls", "tool_use", "function_call"
"""How the three API dialects say that a tool is asked for."""
_STREAM_ENDS = ("response.completed", "response.incomplete", "response.failed", "message_stop")


class _Finish(msgspec.Struct):
    finish_reason: object = None


class _Part(msgspec.Struct):
    type: object = None


class _Whole(msgspec.Struct):
    """What is looked at of a whole answer; the text in it is skipped, not decoded."""

    choices: list[_Finish] | None = None
    usage: dict[str, Any] | None = None
    stop_reason: object = None
    output: list[_Part] | None = None


_WHOLE = msgspec.json.Decoder(_Whole)


class BrokenAnswer(UpstreamFailed):
    """What the caller has so far is not a complete answer."""


class StreamWatcher:
    """One server-sent event stream. `feed` gives what may be forwarded of each chunk.

    Attributes:
        usage: exact counts, once the engine has said them.
        complete: the stream said that it is over, normally.
        num_events: events so far; engines send one per token or one for several, so this is
            close to a lower bound of the output tokens while there is no usage yet.
        tool_called: the answer ends by asking for a tool.
    """

    __slots__ = (
        *("_event_end", "_prompt_tokens", "_tail", "_wants_usage"),
        *("complete", "num_events", "tool_called", "usage"),
    )

    def __init__(self, *, wants_usage: bool) -> None:
        self._wants_usage = wants_usage
        self._event_end = _EVENT_END
        self._tail = b""
        self._prompt_tokens = 0
        self.usage: Usage | None = None
        self.complete = False
        self.num_events = 0
        self.tool_called = False

    def feed(self, chunk: bytes) -> bytes:
        """Bytes to forward now; may be empty when only a part of an event has come.

        Raises:
            BrokenAnswer: the engine or the daemon ended the stream on the way.
        """
        if self._tail:
            chunk = self._tail + chunk
            self._tail = b""
        end = self._event_end
        if not chunk.endswith(end):
            if _CRLF_EVENT_END in chunk:  # some servers end lines with CR LF
                end = self._event_end = _CRLF_EVENT_END
            cut = chunk.rfind(end)
            if cut < 0:
                self._tail = chunk
                return b""
            cut += len(end)
            self._tail = chunk[cut:]
            chunk = chunk[:cut]
        self.num_events += chunk.count(end)
        if not self._wants_usage and b"null" in chunk:
            chunk = _NULL_USAGE.sub(b"", chunk)
        if _INTERESTING.search(chunk) is None:
            return chunk
        return b"".join(self._watch_event(event) for event in chunk.split(end) if event)

    def end(self) -> None:
        """The byte stream is over.

        Raises:
            BrokenAnswer: it never said that it was complete.
        """
        if not self.complete:
            raise BrokenAnswer("the engine closed its answer before it was complete")

    def _watch_event(self, event: bytes) -> bytes:
        """The event with its terminator, or nothing when it is for us alone."""
        if event.startswith(ABORT_COMMENT):
            outcome, _, reason = event[len(ABORT_COMMENT) :].decode(errors="replace").partition(" ")
            raise BrokenAnswer(reason or "the engine was stopped", code=outcome)
        data = b"\n".join(
            line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")
        )
        if data == b"[DONE]":
            self.complete = True
            return event + self._event_end
        document = _parse(data)
        if document is None:
            return event + self._event_end
        for_us_alone = self._watch_document(document)
        return b"" if for_us_alone else event + self._event_end

    def _watch_document(self, document: dict[str, Any]) -> bool:
        choices = document.get("choices")
        _check_finish(choices)
        self.tool_called = self.tool_called or _asks_for_tool(document)
        if "error" in document and choices is None and document.get("type") in (None, "error"):
            raise BrokenAnswer(_error_text(document))
        if document.get("type") in _STREAM_ENDS:
            self.complete = True
        self._take_usage(document)
        return choices == [] and "usage" in document and not self._wants_usage

    def _take_usage(self, document: dict[str, Any]) -> None:
        message = document.get("message")
        if document.get("type") == "message_start" and isinstance(message, dict):
            self._prompt_tokens = _count(message.get("usage"), "input_tokens")
            return
        usage = read_usage(document)
        if usage is not None:
            prompt = usage.prompt_tokens or self._prompt_tokens
            self.usage = Usage(prompt, usage.output_tokens, usage.cached_tokens)


def watch_whole(body: bytes) -> tuple[Usage | None, bool]:
    """Usage of a complete, non-streaming answer, and whether it asks for a tool.

    Raises:
        BrokenAnswer: the engine aborted it although it answered 200, or it is not JSON.
    """
    try:
        document = _WHOLE.decode(body)
    except msgspec.MsgspecError as exc:
        raise BrokenAnswer("the engine answered with something that is not JSON") from exc
    for choice in document.choices or ():
        _check_reason(choice.finish_reason)
    called = document.stop_reason == _TOOL_USE or any(
        choice.finish_reason == _TOOL_CALLS for choice in document.choices or ()
    )
    called = called or any(part.type == _FUNCTION_CALL for part in document.output or ())
    return read_usage({"usage": document.usage}), called


def read_usage(document: dict[str, Any]) -> Usage | None:
    """Token counts of an answer or a stream event, in any of the three API dialects."""
    usage = document.get("usage")
    if usage is None and isinstance(document.get("response"), dict):
        usage = document["response"].get("usage")
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    return Usage(
        prompt_tokens=_count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        output_tokens=_count(usage, "completion_tokens") or _count(usage, "output_tokens"),
        cached_tokens=_count(details, "cached_tokens"),
    )


def upstream_error(status: int, body: bytes) -> RequestError:
    """A failure of an engine as the error the caller gets; plain-text bodies included."""
    document = _parse(body)
    text = _error_text(document) if document else body[:300].decode(errors="replace").strip()
    hint = "`api_key_file` of the model holds the key it wants" if status in (401, 403) else None
    return UpstreamFailed(f"the engine answered {status}: {text or 'no text'}", hint=hint)


def _check_finish(choices: object) -> None:
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict):
                _check_reason(choice.get("finish_reason"))


def _asks_for_tool(document: dict[str, Any]) -> bool:
    choices = document.get("choices")
    if isinstance(choices, list):
        return any(isinstance(c, dict) and c.get("finish_reason") == _TOOL_CALLS for c in choices)
    delta, response = document.get("delta"), document.get("response")
    if isinstance(delta, dict) and delta.get("stop_reason") == _TOOL_USE:
        return True
    output = response.get("output") if isinstance(response, dict) else None
    return isinstance(output, list) and any(
        isinstance(part, dict) and part.get("type") == _FUNCTION_CALL for part in output
    )


def _check_reason(reason: object) -> None:
    if reason in _BAD_FINISH:
        raise BrokenAnswer(f"the engine ended the answer with finish_reason {reason!r}")


def _parse(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _count(mapping: object, key: str) -> int:
    value = mapping.get(key) if isinstance(mapping, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _error_text(document: dict[str, Any]) -> str:
    error = document.get("error", document)
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or "unknown error")[:300]
    return str(error)[:300]
