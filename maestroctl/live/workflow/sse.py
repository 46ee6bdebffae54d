"""Server-sent events, and the chat completion that a stream of them adds up to.

Parsing is incremental: bytes come in pieces of any size, cut anywhere, also within a character or
between CR and LF. An answer is complete only when a choice has said a good ``finish_reason``; a
stream that just ends is a failure, and so is ``abort`` or ``error``, which engines send with
status 200.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from maestroctl.domain.outcome import Usage
from maestroctl.errors import UpstreamFailed

MAX_EVENT_BYTES = 16 << 20
"""A single event larger than this is no chat completion."""
MAX_TEXT = 4 << 20
"""Characters of one answer; far beyond the context of any model."""
MAX_TOOL_CALLS = 64

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BAD_ENDS = ("abort", "error")


class SseParser:
    """Turns bytes into the ``data`` of events."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Data of the events that `chunk` completes.

        Raises:
            UpstreamFailed: an event is larger than `MAX_EVENT_BYTES`.
        """
        self._buffer += chunk
        events: list[str] = []
        while (line := self._take_line()) is not None:
            self._take(line, events)
        if len(self._buffer) + self._size > MAX_EVENT_BYTES:
            raise UpstreamFailed("the engine sent an event that is too large")
        return events

    def end(self) -> list[str]:
        """Data of an event that the end of the stream completes."""
        events: list[str] = []
        if self._buffer:
            self._take(bytes(self._buffer).rstrip(b"\r"), events)
            self._buffer.clear()
        self._take(b"", events)
        return events

    def _take_line(self) -> bytes | None:
        """The next line without its end: LF, CR or CR LF."""
        match = _LINE_END.search(self._buffer, self._searched)
        # A CR at the very end may be the first half of a CR LF.
        if match is None or (match[0] == b"\r" and match.end() == len(self._buffer)):
            self._searched = max(0, len(self._buffer) - 1)
            return None
        self._searched = 0
        line = bytes(self._buffer[: match.start()])
        del self._buffer[: match.end()]
        return line

    def _take(self, line: bytes, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data.clear()
                self._size = 0
        elif line.startswith(b"data"):
            field, colon, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" ") if colon else b"")
                self._size += len(value)
        # Other fields and comments (": heartbeat") mean nothing here.


@dataclass(frozen=True, slots=True)
class ToolCallRequest:
    """A model asks for a tool. `arguments` is the text it wrote, JSON or not."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Completion:
    """A complete answer.

    Attributes:
        finish_reason: ``stop``, ``length``, ``tool_calls``, ...; never ``abort`` or ``error``.
        usage: exact counts, where the engine said them.
    """

    text: str
    tool_calls: tuple[ToolCallRequest, ...] = ()
    finish_reason: str = "stop"
    usage: Usage | None = None


@dataclass(slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class CompletionAssembler:
    """Adds up the events of one streamed chat completion.

    Attributes:
        output_tokens: as the engine last said; None while it has not.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._length = 0
        self._calls: dict[int, _PartialCall] = {}
        self._finish_reason: str | None = None
        self._usage: Usage | None = None
        self.output_tokens: int | None = None

    @property
    def has_output(self) -> bool:
        """A first token has come."""
        return bool(self._text or self._calls)

    def add(self, data: str) -> str:
        """Take the data of one event; return the text it adds.

        Raises:
            UpstreamFailed: it is an error, or no chat completion.
        """
        if data.strip() == "[DONE]":
            return ""
        document = parse_document(data)
        self._take_usage(document.get("usage"))
        added = ""
        for choice in _dicts(document.get("choices")):
            if choice.get("index", 0) == 0:
                added += self._take_choice(choice)
        return added

    def add_whole(self, body: str) -> str:
        """Take a completion that was not streamed; return its text.

        Raises:
            UpstreamFailed: it is an error, or no chat completion.
        """
        document = parse_document(body)
        self._take_usage(document.get("usage"))
        added = ""
        for choice in _dicts(document.get("choices"))[:1]:
            message = choice.get("message")
            calls = _dicts(message.get("tool_calls")) if isinstance(message, dict) else []
            numbered = [{**call, "index": index} for index, call in enumerate(calls)]
            delta = {**(message or {}), "tool_calls": numbered}
            added += self._take_choice({**choice, "delta": delta})
        return added

    def finish(self, usage: Usage | None = None) -> Completion:
        """The complete answer.

        Args:
            usage: what the reply says, when the stream itself said nothing.

        Raises:
            UpstreamFailed: the stream ended before the answer was complete.
        """
        if self._finish_reason is None:
            raise UpstreamFailed("the engine closed its answer before it was complete")
        calls = tuple(
            ToolCallRequest(call.id or f"call_{index}", call.name, call.arguments)
            for index, call in sorted(self._calls.items())
        )
        text = "".join(self._text)
        return Completion(text, calls, self._finish_reason, self._usage or usage)

    def _take_choice(self, choice: Mapping[str, Any]) -> str:
        delta = choice.get("delta")
        added = ""
        if isinstance(delta, dict):
            content = delta.get("content")
            if isinstance(content, str) and content:
                added = content
                self._grow(len(content))
                self._text.append(content)
            for part in _dicts(delta.get("tool_calls")):
                self._take_call(part)
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            if reason in _BAD_ENDS:
                raise UpstreamFailed(f"the engine ended the answer with {reason!r}", code=reason)
            self._finish_reason = reason
        return added

    def _take_call(self, part: Mapping[str, Any]) -> None:
        index = part.get("index", 0)
        if not isinstance(index, int) or not 0 <= index < MAX_TOOL_CALLS:
            raise UpstreamFailed(f"the model asked for more than {MAX_TOOL_CALLS} tools at once")
        call = self._calls.setdefault(index, _PartialCall())
        if isinstance(part.get("id"), str):
            call.id = part["id"]
        function = part.get("function")
        if not isinstance(function, dict):
            return
        if isinstance(function.get("name"), str):
            call.name += function["name"]
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # some servers send an object in place of its text
            arguments = json.dumps(arguments)
        if isinstance(arguments, str):
            self._grow(len(arguments))
            call.arguments += arguments

    def _take_usage(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(output, int):
            self._usage = Usage(prompt, output, cached if isinstance(cached, int) else 0)
            self.output_tokens = output

    def _grow(self, num_chars: int) -> None:
        self._length += num_chars
        if self._length > MAX_TEXT:
            raise UpstreamFailed(f"the answer is longer than {MAX_TEXT} characters")


def parse_document(text: str) -> dict[str, Any]:
    """The JSON object in `text`.

    Raises:
        UpstreamFailed: it is none, or it is an error body.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise UpstreamFailed(f"the engine sent something that is not JSON: {text[:80]!r}") from exc
    if not isinstance(document, dict):
        raise UpstreamFailed(f"the engine sent something that is no object: {text[:80]!r}")
    if document.get("error"):
        raise UpstreamFailed(f"the engine failed: {error_text(document)}")
    return document


def error_text(document: Any) -> str:
    """The message of an error body of any shape, cut to a readable length."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or "no message"
    return str(error)[:500]


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
