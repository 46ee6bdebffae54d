"""How answers look on the wire: chat completions, text completions, responses.

Field names, order and nulls are those of vLLM 0.32: chunks leave ``usage`` out unless continuous
statistics were asked for, the last text of a cut-off answer shares its chunk with
``finish_reason``, and an aborted answer is an ordinary one with ``finish_reason: "abort"``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import Any

from maestroctl.testing.stub_engine.http_server import dump_json

DONE_EVENT = b"data: [DONE]\n\n"


def encode_text(text: str) -> bytes:
    """A JSON string."""
    return encode_basestring(text).encode("utf-8", "surrogatepass")


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """The usage object of chat and text completions."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


class Shape(ABC):
    """Builds the bytes of one answer.

    Args:
        answer_id: the id the client sees.
        model: the name the client asked for.
        created_s: Unix time, whole seconds.
        prompt_tokens: for usage.
    """

    def __init__(self, answer_id: str, model: str, created_s: int, prompt_tokens: int) -> None:
        self.answer_id = answer_id
        self.model = model
        self.created_s = created_s
        self.prompt_tokens = prompt_tokens

    @abstractmethod
    def begin(self) -> Sequence[bytes]:
        """Events before the first text."""

    @abstractmethod
    def delta(self, text: str, completion_tokens: int) -> bytes:
        """The event of one piece of text; tokens are those so far."""

    @abstractmethod
    def end(self, rest: str, reason: str, completion_tokens: int) -> Sequence[bytes]:
        """Events from the last piece of text, perhaps empty, to the end of the stream."""

    @abstractmethod
    def whole(self, text: str, reason: str, completion_tokens: int) -> dict[str, Any]:
        """The answer when nothing is streamed."""


class CompletionShape(Shape):
    """``/v1/completions``; the base of the chat shape, which differs in names only.

    Args:
        include_usage: a last chunk with usage and no choices.
        continuous: usage on every chunk.
        null_usage: ``"usage": null`` on chunks without; OpenAI does that, vLLM does not.
        fingerprint: ``system_fingerprint`` of the last chunk.
    """

    chunk_object = "text_completion"

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_s: int,
        prompt_tokens: int,
        *,
        include_usage: bool = False,
        continuous: bool = False,
        null_usage: bool = False,
        fingerprint: str = "vllm-stub",
    ) -> None:
        super().__init__(answer_id, model, created_s, prompt_tokens)
        self.include_usage = include_usage
        self.continuous = continuous
        self.fingerprint = fingerprint
        self._no_usage = b',"usage":null' if include_usage and null_usage else b""
        self._head = b""  # what all chunks begin with; made for the first

    def begin(self) -> Sequence[bytes]:
        """Text completions have no opening chunk."""
        return ()

    def delta(self, text: str, completion_tokens: int) -> bytes:
        """One chunk."""
        choice = (
            b'[{"index":0,"text":%b,"logprobs":null,"finish_reason":null,"stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]' % encode_text(text)
        )
        return self._chunk(choice, completion_tokens)

    def end(self, rest: str, reason: str, completion_tokens: int) -> Sequence[bytes]:
        """The finish chunk, the usage chunk, the end marker."""
        events = [self._chunk(self._last_choice(rest, reason), completion_tokens, last=True)]
        if self.include_usage:
            usage = dump_json(usage_of(self.prompt_tokens, completion_tokens))
            tail = b',"system_fingerprint":%b}\n\n' % encode_text(self.fingerprint)
            events.append(self._chunk_head() + b'[],"usage":' + usage + tail)
        events.append(DONE_EVENT)
        return events

    def whole(self, text: str, reason: str, completion_tokens: int) -> dict[str, Any]:
        """The whole answer."""
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        choice |= {"stop_reason": None, "token_ids": None, "prompt_logprobs": None}
        return self._whole("text_completion", choice, completion_tokens)

    def _last_choice(self, rest: str, reason: str) -> bytes:
        return (
            b'[{"index":0,"text":%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,'
            b'"prompt_token_ids":null,"token_ids":null}]' % (encode_text(rest), reason.encode())
        )

    def _whole(self, kind: str, choice: dict[str, Any], completion_tokens: int) -> dict[str, Any]:
        usage = usage_of(self.prompt_tokens, completion_tokens)
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {
                **usage,
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _chunk(
        self, choices: bytes, completion_tokens: int, *, more: bytes = b"", last: bool = False
    ) -> bytes:
        tail = self._no_usage
        if self.continuous:
            usage = usage_of(self.prompt_tokens, completion_tokens)
            tail = b',"usage":' + dump_json({**usage, "completion_tokens_details": None})
        tail += more
        if last and not self.include_usage:
            tail += b',"system_fingerprint":' + encode_text(self.fingerprint)
        return b"%b%b%b}\n\n" % (self._chunk_head(), choices, tail)

    def _chunk_head(self) -> bytes:
        if not self._head:
            self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":' % (
                encode_text(self.answer_id),
                self.chunk_object.encode(),
                self.created_s,
                encode_text(self.model),
            )
        return self._head


class ChatShape(CompletionShape):
    """``/v1/chat/completions``, text or one tool call.

    Args:
        tool_name: when set, the text is the JSON arguments of a call of this tool.
        tool_call_id: id of that call.
    """

    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        *args: Any,
        tool_name: str | None = None,
        tool_call_id: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._tool_name = tool_name
        self._tool_call_id = tool_call_id

    def begin(self) -> Sequence[bytes]:
        """The role, then the name of the tool."""
        choice = (
            b'[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]'
        )
        events = [self._chunk(choice, 0, more=b',"prompt_token_ids":null,"prompt_text":null')]
        if self._tool_name is not None:
            call = {"id": self._tool_call_id, "type": "function", "index": 0}
            function = {"name": self._tool_name, "arguments": ""}
            delta = {"tool_calls": [{**call, "function": function}]}
            events.append(self._delta_chunk(dump_json(delta), 0))
        return events

    def delta(self, text: str, completion_tokens: int) -> bytes:
        """One chunk of text, or of arguments."""
        return self._delta_chunk(self._delta(text), completion_tokens)

    def whole(self, text: str, reason: str, completion_tokens: int) -> dict[str, Any]:
        """The whole answer."""
        calls: list[dict[str, Any]] = []
        content: str | None = text
        if self._tool_name is not None:
            function = {"name": self._tool_name, "arguments": text}
            calls = [{"id": self._tool_call_id, "type": "function", "function": function}]
            content = None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        message |= {"annotations": None, "audio": None, "function_call": None}
        if calls:
            message["tool_calls"] = calls
        message["reasoning"] = None
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        choice |= {"stop_reason": None, "token_ids": None, "routed_experts": None}
        return self._whole("chat.completion", choice, completion_tokens)

    def _delta(self, text: str) -> bytes:
        if self._tool_name is None:
            return b'{"content":%b}' % encode_text(text)
        function = b'{"arguments":%b}' % encode_text(text)
        return b'{"tool_calls":[{"index":0,"function":%b}]}' % function

    def _delta_chunk(self, delta: bytes, completion_tokens: int) -> bytes:
        choice = b'[{"index":0,"delta":%b,"logprobs":null,"finish_reason":null,"token_ids":null}]'
        return self._chunk(choice % delta, completion_tokens)

    def _last_choice(self, rest: str, reason: str) -> bytes:
        delta = self._delta(rest) if rest or self._tool_name is None else b"{}"
        return (
            b'[{"index":0,"delta":%b,"logprobs":null,"finish_reason":"%b","stop_reason":null,'
            b'"token_ids":null}]' % (delta, reason.encode())
        )
