"""Which requests are well formed, and what a body becomes.

Covers the five inference APIs. Only what maestroctl acts on is looked at (model, the conversation,
streaming, limits, tools); every other field keeps the bytes the client sent and is forwarded
unchanged, whatever it holds. What an engine alone can judge (a temperature of 7, a role its chat
template does not know) is left to the engine, whose 4xx comes back as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from maestroctl.errors import InvalidRequest


class Api(StrEnum):
    """One of the five inference APIs; the value is its path below ``/v1/``."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"

    @property
    def path(self) -> str:
        """Path at the engine."""
        return f"/v1/{self.value}"

    @property
    def content_field(self) -> str:
        """The field that holds what the model is to read."""
        return _CONTENT_FIELD[self]

    @property
    def can_stream(self) -> bool:
        """``stream`` means something."""
        return self is not Api.EMBEDDINGS

    @property
    def usage_on_request(self) -> bool:
        """Usage is in a stream only for those who ask; the other dialects always carry it."""
        return self in (Api.CHAT, Api.COMPLETIONS)


_CONTENT_FIELD = {
    Api.CHAT: "messages",
    Api.COMPLETIONS: "prompt",
    Api.EMBEDDINGS: "input",
    Api.RESPONSES: "input",
    Api.MESSAGES: "messages",
}

# --- shapes of conversations --------------------------------------------------------------------

ContentPart = str | dict[str, Any]


class FunctionCall(msgspec.Struct, gc=False):
    """What an assistant message wants called."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, gc=False):
    """One tool call of a chat message."""

    id: str | None = None
    function: FunctionCall | None = None


class ChatMessage(msgspec.Struct, gc=False):
    """A message of ``/v1/chat/completions``."""

    role: str
    content: str | list[ContentPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class InputItem(msgspec.Struct, gc=False):
    """An input item of ``/v1/responses``: a message, a call, its output, or something else."""

    type: str | None = None
    role: str | None = None
    content: Any = None
    call_id: str | None = None
    name: str | None = None
    arguments: Any = None
    output: Any = None


class BlockMessage(msgspec.Struct, gc=False):
    """A message of ``/v1/messages``."""

    role: str
    content: str | list[dict[str, Any]]


class _ToolFunction(msgspec.Struct, gc=False):
    name: str | None = None


class Tool(msgspec.Struct, gc=False):
    """A tool in any of the three dialects."""

    type: str | None = None
    name: str | None = None
    function: _ToolFunction | None = None

    @property
    def label(self) -> str:
        """Its name; the type of a built-in one."""
        inner = self.function.name if self.function else None
        return inner or self.name or self.type or ""


_AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)] | None
_AtLeastZero = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] | None
_Number = int | float | None
_Object = dict[str, Any] | None

_CONTENT_TYPES: dict[Api, Any] = {
    Api.CHAT: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)],
    Api.COMPLETIONS: str | list[Any],
    Api.EMBEDDINGS: str | list[Any],
    Api.RESPONSES: str | list[InputItem],
    Api.MESSAGES: Annotated[list[BlockMessage], msgspec.Meta(min_length=1)],
}
_STREAMING: dict[str, Any] = {"stream": bool | None, "stream_options": _Object}
_KEPT: dict[Api, dict[str, Any]] = {
    Api.CHAT: {
        **_STREAMING,
        "max_tokens": _AtLeastOne,
        "max_completion_tokens": _AtLeastOne,
        "n": _AtLeastOne,
    },
    # 0 is allowed here: score the prompt, write nothing.
    Api.COMPLETIONS: {**_STREAMING, "max_tokens": _AtLeastZero, "n": _AtLeastOne},
    Api.EMBEDDINGS: {},
    Api.RESPONSES: {**_STREAMING, "max_output_tokens": _AtLeastOne},
    Api.MESSAGES: {"stream": bool | None, "max_tokens": _AtLeastOne},
}
"""Checked, and forwarded as plain values: the coordinator reads or sets them."""
_ANYWHERE: dict[str, Any] = {"metadata": _Object, "maestro": _Object, "extra_body": _Object}
_SAMPLING: dict[str, Any] = {"temperature": _Number, "top_p": _Number}
_TOOLS: dict[str, Any] = {"tools": list[Tool] | None, "tool_choice": str | dict[str, Any] | None}
_CHECKED: dict[Api, dict[str, Any]] = {
    Api.CHAT: {
        **_ANYWHERE,
        **_SAMPLING,
        **_TOOLS,
        "stop": str | list[str] | None,
        "response_format": _Object,
        "reasoning_effort": str | None,
        "chat_template_kwargs": _Object,
        "user": str | None,
    },
    Api.COMPLETIONS: {
        **_ANYWHERE,
        **_SAMPLING,
        "stop": str | list[str] | None,
        "response_format": _Object,
        "user": str | None,
    },
    Api.EMBEDDINGS: {**_ANYWHERE, "user": str | None},
    Api.RESPONSES: {
        **_ANYWHERE,
        **_SAMPLING,
        **_TOOLS,
        "reasoning": _Object,
        "text": _Object,
        "instructions": str | None,
        "previous_response_id": str | None,
    },
    Api.MESSAGES: {
        **_ANYWHERE,
        **_SAMPLING,
        **_TOOLS,
        "stop_sequences": list[str] | None,
        "thinking": _Object,
        "system": str | list[dict[str, Any]] | None,
    },
}
"""Checked; their bytes are forwarded as they came."""

_Decoders = Mapping[str, "msgspec.json.Decoder[Any]"]


def _decoders(types: Mapping[Api, Mapping[str, Any]]) -> Mapping[Api, _Decoders]:
    return {
        api: {name: msgspec.json.Decoder(kind) for name, kind in fields.items()}
        for api, fields in types.items()
    }


_BODY: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MODEL = msgspec.json.Decoder(str)
_CONTENT: Mapping[Api, msgspec.json.Decoder[Any]] = {
    api: msgspec.json.Decoder(kind) for api, kind in _CONTENT_TYPES.items()
}
_KEPT_DECODERS = _decoders(_KEPT)
_CHECKED_DECODERS = _decoders(_CHECKED)

_PLACE = re.compile(r"(?s)(.*?)(?: - at `(key in )?\$(.*)`)?")


@dataclass(slots=True)
class Body:
    """A request body that passed the checks.

    Attributes:
        fields: what is forwarded; values nobody here reads are `msgspec.Raw`.
        content: the conversation, decoded by the shape of its API.
        known: decoded values of the checked fields; absent and null ones are missing.
        num_bytes: of the body as it came.
    """

    api: Api
    model: str
    fields: dict[str, Any]
    content: Any
    known: dict[str, Any]
    num_bytes: int

    @property
    def stream(self) -> bool:
        """The answer is to come as events."""
        return self.api.can_stream and self.known.get("stream") is True


def parse_body(api: Api, data: bytes) -> Body:
    """Check a body and keep what is needed of it.

    Raises:
        InvalidRequest: with the field at fault in `param`.
    """
    fields: dict[str, Any] = _decode_object(data)
    model = _decode_field("model", fields, _MODEL)
    if not model.strip():
        raise InvalidRequest("'model' is empty", param="model")
    content = _decode_field(api.content_field, fields, _CONTENT[api])
    known: dict[str, Any] = {}
    kept, checked = _KEPT_DECODERS[api], _CHECKED_DECODERS[api]
    for name, raw in fields.items():
        decoder = checked.get(name) or kept.get(name)
        if decoder is not None:
            value = _decode(name, raw, decoder)
            if value is not None:
                known[name] = value
            if name in kept:
                fields[name] = value  # replaces a value: the keys, iterated here, stay as they are
    fields["model"] = model
    _check_content(api, content)
    return Body(api, model, fields, content, known, len(data))


def _decode_object(data: bytes) -> dict[str, Any]:
    if not data.strip():
        raise InvalidRequest("the body is empty; a JSON object was expected")
    try:
        if not data.isascii():
            data.decode("utf-8")
        return dict(_BODY.decode(data))
    except msgspec.ValidationError as exc:
        raise InvalidRequest(f"the body must be a JSON object: {exc}") from exc
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"the body is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    except RecursionError as exc:
        raise InvalidRequest("the body is nested too deeply") from exc


def _decode_field(name: str, fields: dict[str, Any], decoder: msgspec.json.Decoder[Any]) -> Any:
    raw = fields.get(name)
    if raw is None:
        raise InvalidRequest(f"'{name}' is missing", param=name)
    return _decode(name, raw, decoder)


def _decode(name: str, raw: Any, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as exc:
        raise _wrong_type(name, str(exc)) from exc
    except msgspec.DecodeError as exc:
        raise InvalidRequest(f"'{name}' is not valid JSON: {exc}", param=name) from exc
    except RecursionError as exc:
        raise InvalidRequest(f"'{name}' is nested too deeply", param=name) from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"'{name}' is not UTF-8", param=name) from exc


def _wrong_type(name: str, text: str) -> InvalidRequest:
    """``Expected `str`, got `int` - at `$[0].role``` becomes a sentence about messages[0].role."""
    match = _PLACE.fullmatch(text)
    assert match is not None
    param = name + (match[3] or "")
    problem = match[1].replace("`", "").replace("Object missing", "missing")
    return InvalidRequest(f"'{param}': {problem[:1].lower()}{problem[1:]}", param=param)


def _check_content(api: Api, content: Any) -> None:
    """What a type alone does not say."""
    if api is Api.COMPLETIONS or api is Api.EMBEDDINGS:
        _check_prompt(api.content_field, content)
    elif content == []:
        raise InvalidRequest(f"'{api.content_field}' is empty", param=api.content_field)


def _check_prompt(name: str, content: Any) -> None:
    """A string, strings, token ids, or lists of token ids."""
    if isinstance(content, str):
        return
    if not content:
        raise InvalidRequest(f"'{name}' is empty", param=name)
    kinds = {type(item) for item in content}
    if kinds == {str} or kinds == {int}:
        return
    tokens = {type(token) for item in content if isinstance(item, list) for token in item}
    if kinds == {list} and all(content) and tokens == {int}:
        return
    raise InvalidRequest(
        f"'{name}' must be a string, a list of strings, or lists of token ids", param=name
    )
