"""What the stub answers: a whole output decided from the request alone.

The last user text (or the prompt of a completion) may steer it:

``ECHO: text``        the output is exactly ``text`` (all that follows)
``TOKENS n``          the output has exactly n tokens
``CALL name {json}``  with tools given: a tool call. The k-th round of a turn takes the k-th
                      ``CALL``; when none is left the answer is text again, so tool loops end.

Otherwise 16 to 79 words drawn from a list, seeded by model and prompt. A token of a prompt is four
bytes of UTF-8; a token of an output is one word with the space before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

_WORD_LIST = (
    "amber birch cedar delta ember fjord grove harbor island juniper kelp lantern meadow nectar "
    "orchard pebble quartz river saffron timber umber valley willow xenon yarrow zephyr anchor "
    "beacon canyon dune estuary falcon glacier hollow indigo jasper kernel lagoon marble nimbus "
    "opal prairie quill ridge summit tundra upland vessel walnut yonder zinc acorn bramble copper "
    "drift echo fern granite heron iris jetty knoll lichen moss"
)
WORDS = tuple(_WORD_LIST.split())
"""64 words: a word is picked with 6 bits."""

MESSAGE_OVERHEAD_TOKENS = 4
"""Tokens a chat template adds to each message; a round number near real templates."""

_PIECE = re.compile(r"\s*\S+|\s+")
_ARGUMENT_PIECE = re.compile(r".{1,4}", re.DOTALL)
_ECHO = re.compile(r"ECHO: (.*)\Z", re.DOTALL)
_TOKENS = re.compile(r"\bTOKENS (\d+)\b")
_CALL = re.compile(r"\bCALL ([A-Za-z0-9_.-]+) (?=\{)")
_JSON = json.JSONDecoder()


class BadRequest(Exception):
    """A request vLLM answers with 400; names the parameter."""

    def __init__(self, message: str, param: str | None = None, kind: str = "BadRequestError"):
        super().__init__(message)
        self.message = message
        self.param = param
        self.kind = kind

    @classmethod
    def invalid(cls, field: str, problem: str) -> BadRequest:
        """A field that fails validation; no field = the whole body."""
        param = f"body.{field}" if field else "body"
        kind = "missing" if problem == "Field required" else "invalid"
        detail = {"type": kind, "loc": param, "msg": problem}
        return cls(f"1 validation error:\n  {detail}", param, "Bad Request")

    @classmethod
    def out_of_range(cls, message: str, field: str, value: object) -> BadRequest:
        """A value that is well formed but cannot be."""
        return cls(f"{message} (parameter={field}, value={value})", field)

    @classmethod
    def missing(cls, field: str) -> BadRequest:
        """A field that must be there."""
        return cls.invalid(field, "Field required")


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds and varies the outputs of one engine."""

    model: str
    max_model_len: int
    noise: bool = False  # weights were dropped and never reloaded: answers are rubbish


@dataclass(slots=True)
class OutputPlan:
    """A whole answer, before the first token of it is shown."""

    prompt_tokens: int
    tokens: list[str]  # pieces of text, or of the arguments of `tool_name`
    finish_reason: str  # "stop" | "length" | "tool_calls"
    tool_name: str | None = None


def count_tokens(text: str) -> int:
    """Prompt tokens of a text: one per four bytes of UTF-8, rounded up."""
    return (len(text) + 3) // 4 if text.isascii() else (len(text.encode()) + 3) // 4


def token_ids(text: str) -> list[int]:
    """One number per prompt token, the same for the same bytes."""
    data = text.encode()
    return [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]


def is_token_list(value: Any) -> bool:
    """Whether a prompt is given as token numbers."""
    return isinstance(value, list) and bool(value) and all(isinstance(t, int) for t in value)


def message_text(message: dict[str, Any]) -> str:
    """The text of one chat message, parts joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def count_chat_tokens(messages: Sequence[dict[str, Any]]) -> int:
    """Prompt tokens of a conversation, the chat template included."""
    total = 0
    for message in messages:
        total += MESSAGE_OVERHEAD_TOKENS + count_tokens(message_text(message))
        for call in message.get("tool_calls") or ():
            total += count_tokens(json.dumps(call))
    return total


def plan_chat(body: dict[str, Any], limits: Limits) -> OutputPlan:
    """Decide the answer to a chat request.

    Raises:
        BadRequest: the prompt is longer than the context, or a limit is out of range.
    """
    messages: list[dict[str, Any]] = body["messages"]
    prompt_tokens = count_chat_tokens(messages)
    room = _room(body, limits, prompt_tokens)
    last_user, tool_rounds = _last_turn(messages)
    call = _choose_call(body, last_user, tool_rounds)
    if call is not None and not limits.noise:
        name, arguments = call
        tokens = _ARGUMENT_PIECE.findall(arguments)
        # vLLM ends a call of a named tool with "stop", any other with "tool_calls".
        complete = "stop" if isinstance(body.get("tool_choice"), dict) else "tool_calls"
        finish = complete if len(tokens) <= room else "length"
        return OutputPlan(prompt_tokens, tokens[:room], finish, name)
    seed = "\0".join(f"{message.get('role')}:{message_text(message)}" for message in messages)
    return _plan_text(body, limits, prompt_tokens, room, last_user, seed)


def plan_completion(body: dict[str, Any], prompt: str, limits: Limits) -> OutputPlan:
    """Decide the answer to a text completion.

    Raises:
        BadRequest: the prompt is longer than the context, or a limit is out of range.
    """
    prompt_tokens = max(1, count_tokens(prompt))
    room = _room(body, limits, prompt_tokens, default=16)
    return _plan_text(body, limits, prompt_tokens, room, prompt, prompt)


def _room(
    body: dict[str, Any], limits: Limits, prompt_tokens: int, default: int | None = None
) -> int:
    """Output tokens the request may have."""
    if body.get("n") not in (None, 1):
        raise BadRequest(f"n must be 1 when using greedy sampling, got {body['n']}.")
    if prompt_tokens > limits.max_model_len:
        raise BadRequest.out_of_range(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your "
            f"prompt contains {prompt_tokens} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            prompt_tokens,
        )
    asked = body.get("max_completion_tokens")
    if asked is None:
        asked = body.get("max_tokens")
    if asked is None:
        asked = default
    room = limits.max_model_len - prompt_tokens
    if asked is None:
        return room
    if isinstance(asked, bool) or not isinstance(asked, int):
        raise BadRequest.invalid("max_tokens", "Input should be a valid integer")
    if asked < 0 or (asked == 0 and default is None):
        message = f"max_tokens must be at least 1, got {asked}."
        raise BadRequest.out_of_range(message, "max_tokens", asked)
    if asked > limits.max_model_len:
        raise BadRequest.out_of_range(
            f"max_tokens={asked} cannot be greater than max_model_len={limits.max_model_len}. "
            "Please request fewer output tokens.",
            "max_tokens",
            asked,
        )
    return min(asked, room)


def _last_turn(messages: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """The last user text, and how many tool rounds followed it."""
    rounds = 0
    for message in reversed(messages):
        role = message.get("role")
        if role == "user":
            return message_text(message), rounds
        if role == "assistant" and message.get("tool_calls"):
            rounds += 1
    return "", rounds


def _choose_call(body: dict[str, Any], last_user: str, tool_rounds: int) -> tuple[str, str] | None:
    """Name and JSON arguments of the tool to call, or None for text."""
    tools = [tool.get("function") or {} for tool in body.get("tools") or ()]
    choice = body.get("tool_choice") or "auto"
    if not tools or choice == "none":
        return None
    calls = _written_calls(last_user)
    if isinstance(choice, dict):
        wanted = (choice.get("function") or {}).get("name")
        calls = [call for call in calls if call[0] == wanted]
        tools = [tool for tool in tools if tool.get("name") == wanted] or [{"name": wanted}]
    if tool_rounds < len(calls):
        return calls[tool_rounds]
    if choice == "auto":
        return None
    return str(tools[0].get("name")), json.dumps(_example(tools[0].get("parameters") or {}))


def _written_calls(text: str) -> list[tuple[str, str]]:
    calls = []
    for match in _CALL.finditer(text):
        try:
            _, end = _JSON.raw_decode(text, match.end())
        except ValueError:
            continue
        calls.append((match[1], text[match.end() : end]))
    return calls


def _example(schema: dict[str, Any]) -> Any:
    """The smallest value a JSON schema of a tool accepts."""
    if schema.get("enum"):
        return schema["enum"][0]
    properties = schema.get("properties") or {}
    kind = schema.get("type", "object" if properties else None)
    if kind == "object" or kind is None:
        return {name: _example(properties.get(name) or {}) for name in schema.get("required") or ()}
    values: dict[Any, Any] = {"string": "x", "integer": 1, "number": 1.0, "boolean": True}
    return values.get(kind, [] if kind == "array" else None)


def _plan_text(
    body: dict[str, Any], limits: Limits, prompt_tokens: int, room: int, steer: str, seed: str
) -> OutputPlan:
    if body.get("ignore_eos"):
        tokens = _words(limits, seed, room)
    elif (echo := _ECHO.search(steer)) and not limits.noise:
        tokens = _PIECE.findall(echo[1])
    else:
        wanted = _TOKENS.search(steer)
        tokens = _words(limits, seed, min(room + 1, int(wanted[1])) if wanted else None)
    tokens = _apply_stop(tokens, body.get("stop"))
    finish = "stop" if len(tokens) <= room and not body.get("ignore_eos") else "length"
    return OutputPlan(prompt_tokens, tokens[:room], finish)


def _words(limits: Limits, seed: str, count: int | None) -> list[str]:
    """Words drawn by a linear congruential generator (Knuth's MMIX constants) from a hash."""
    key = f"{'noise' if limits.noise else limits.model}\0{seed}"
    state = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    if count is None:
        count = 16 + state % 64
    words = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        words.append(_SPACED[state >> 58])
    if words:
        words[0] = words[0][1:]
    return words


_SPACED = tuple(" " + word for word in WORDS)


def _apply_stop(tokens: list[str], stop: Any) -> list[str]:
    """Cut the text before the first stop string."""
    if not stop:
        return tokens
    text = "".join(tokens)
    stops = [stop] if isinstance(stop, str) else stop
    found = [at for word in stops if word and (at := text.find(word)) >= 0]
    return _PIECE.findall(text[: min(found)]) if found else tokens
