"""The conversation inside a request or an answer, the same for every API dialect.

`descriptor` reads its text and lengths, `joining` its digests. Nothing of it outlives the request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from maestroctl.gateway.openai_schema import (
    Api,
    BlockMessage,
    Body,
    ChatMessage,
    InputItem,
    ToolCall,
)

_SYSTEM_ROLES = ("system", "developer")
_UNREAD_ITEMS = ("reasoning", "item_reference", "thinking", "redacted_thinking")
"""Kinds of items that clients drop or rewrite: they take no part in comparing conversations."""


class Turn(msgspec.Struct, gc=False):
    """One message, or one item of the responses API.

    Attributes:
        text: all its text parts, joined.
        calls: name and arguments of the tool calls in it.
        ids: tool-call ids in it, whether it calls or answers.
        others: digests of parts that are not text (images, audio).
    """

    role: str
    text: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    ids: tuple[str, ...] = ()
    others: tuple[int, ...] = ()

    @property
    def is_ours(self) -> bool:
        """An engine wrote it."""
        return self.role == "assistant"

    def digest(self) -> int:
        """Equal for turns that mean the same: arguments are compared parsed, outer space ignored.

        `hash` is keyed anew in each process and digests never leave it.
        """
        calls = tuple((name, _arguments_digest(arguments)) for name, arguments in self.calls)
        return hash((self.role, self.text.strip(), calls, self.others))


class Conversation(msgspec.Struct, gc=False):
    """What a request says, system message apart.

    Attributes:
        ids: of earlier answers the request names outright, besides those in its turns.
        num_token_ids: prompt tokens that came as numbers.
    """

    system: str
    turns: list[Turn]
    ids: tuple[str, ...] = ()
    num_token_ids: int = 0


def read_conversation(body: Body) -> Conversation:
    """The conversation of a checked request."""
    match body.api:
        case Api.CHAT:
            return _split(chat_turns(body.content))
        case Api.MESSAGES:
            system = _text_and_others(body.known.get("system"))[0]
            turns = [turn for message in body.content for turn in block_turns(message)]
            return Conversation(system, turns)
        case Api.RESPONSES:
            return _read_responses(body)
        case _:
            return _read_prompt(body.content)


def _split(turns: list[Turn]) -> Conversation:
    system = [turn.text for turn in turns if turn.role in _SYSTEM_ROLES]
    if not system:
        return Conversation("", turns)
    rest = [turn for turn in turns if turn.role not in _SYSTEM_ROLES]
    return Conversation("\n".join(system), rest)


def _read_prompt(content: Any) -> Conversation:
    if isinstance(content, str):
        return Conversation("", [Turn("user", content)])
    if isinstance(content[0], str):
        return Conversation("", [Turn("user", "\n".join(content))])
    count = len(content) if isinstance(content[0], int) else sum(map(len, content))
    return Conversation("", [], num_token_ids=count)


def _read_responses(body: Body) -> Conversation:
    if isinstance(body.content, str):
        turns = [Turn("user", body.content)]
    else:
        turns = item_turns(body.content)
    conversation = _split(turns)
    instructions = body.known.get("instructions")
    if instructions:
        conversation.system = "\n".join(filter(None, (instructions, conversation.system)))
    previous = body.known.get("previous_response_id")
    if previous:
        conversation.ids = (previous,)
    return conversation


# --- turns of each dialect ----------------------------------------------------------------------


def chat_turns(messages: Sequence[ChatMessage]) -> list[Turn]:
    """Turns of ``/v1/chat/completions``; names are ignored, frameworks add them."""
    turns = []
    for message in messages:
        content = message.content
        if message.tool_calls is None and message.tool_call_id is None and type(content) is str:
            turns.append(Turn(message.role, content))
            continue
        text, others = _text_and_others(content)
        calls = message.tool_calls or ()
        ids = tuple(call.id for call in calls if call.id)
        if message.tool_call_id:
            ids = (message.tool_call_id,)
        turns.append(Turn(message.role, text, tuple(map(_chat_call, calls)), ids, others))
    return turns


def _chat_call(call: ToolCall) -> tuple[str, Any]:
    function = call.function
    return (function.name or "", function.arguments) if function else ("", None)


def item_turns(items: Sequence[InputItem]) -> list[Turn]:
    """Turns of ``/v1/responses``: messages, calls and outputs are items of their own."""
    turns = []
    for item in items:
        ids = (item.call_id,) if item.call_id else ()
        if item.type in _UNREAD_ITEMS:
            continue
        if item.role is not None:
            text, others = _text_and_others(item.content)
            turns.append(Turn(item.role, text, others=others))
        elif item.name is not None:
            turns.append(Turn("assistant", calls=((item.name, item.arguments),), ids=ids))
        else:
            text, others = _text_and_others(item.output)
            turns.append(Turn("tool", text, ids=ids, others=others))
    return turns


def block_turns(message: BlockMessage) -> list[Turn]:
    """Turns of one message of ``/v1/messages``: tool results become turns before its text."""
    if isinstance(message.content, str):
        return [Turn(message.role, message.content)]
    turns, parts, calls, ids = [], [], [], []
    for block in message.content:
        match block.get("type"):
            case "tool_use":
                calls.append((str(block.get("name")), block.get("input")))
                ids.append(str(block.get("id")))
            case "tool_result":
                text, others = _text_and_others(block.get("content"))
                turns.append(
                    Turn("tool", text, ids=(str(block.get("tool_use_id")),), others=others)
                )
            case kind if kind in _UNREAD_ITEMS:
                pass
            case _:
                parts.append(block)
    if parts or calls or not turns:
        text, others = _text_and_others(parts)
        turns.append(Turn(message.role, text, tuple(calls), tuple(ids), others))
    return turns


def _text_and_others(content: Any) -> tuple[str, tuple[int, ...]]:
    """Text of a string or of content parts, and digests of the parts that are not text."""
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        return "", () if content is None else (_value_digest(content),)
    texts: list[str] = []
    others: list[int] = []
    for part in content:
        text = part if isinstance(part, str) else _part_text(part)
        if text is None:
            others.append(_value_digest(part))
        else:
            texts.append(text)
    return "".join(texts), tuple(others)


def _part_text(part: Any) -> str | None:
    if isinstance(part, dict):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
    return None


def arguments_text(arguments: Any) -> str:
    """Arguments of a tool call as the model wrote them; some dialects send them parsed."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments or {}, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):
        return ""


def _arguments_digest(arguments: Any) -> int:
    if not isinstance(arguments, str):
        return _value_digest({} if arguments is None else arguments)
    try:
        return _value_digest(msgspec.json.decode(arguments or "{}"))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return hash(arguments)


def _value_digest(value: Any) -> int:
    """Of a JSON value, whatever the order of its keys."""
    try:
        return hash(msgspec.json.encode(value, order="sorted"))
    except (RecursionError, ValueError, OverflowError, TypeError):
        return hash(repr(type(value)))
