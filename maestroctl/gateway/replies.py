"""What an engine answered, put together again from its bytes, for joining and nothing else.

Forwarding never waits for this. Chunks of a stream are kept as they are and parsed some 4 KiB at
a time, so the cost per chunk is an append and what is held is mostly the text itself. An answer
that grows past `MAX_BYTES`, or that cannot be read, is simply not noted.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from maestroctl.gateway.conversation import Turn, block_turns, chat_turns, item_turns
from maestroctl.gateway.openai_schema import Api, BlockMessage, ChatMessage, InputItem

FOLD_BYTES = 4 << 10
"""Unparsed bytes of one stream, about 16 chunks: 1,200 streams hold 5 MB of them at most."""
MAX_BYTES = 4 << 20
"""Text of one answer."""
MAX_CHOICES = 8

_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Answer(msgspec.Struct):
    """One answer.

    Attributes:
        alternatives: the turns that may follow the request; several when ``n`` was above 1.
        ids: the answer's own id where a later request may name it.
    """

    alternatives: list[list[Turn]]
    ids: tuple[str, ...] = ()


_NOTHING = Answer([])

# --- whole answers ------------------------------------------------------------------------------


class _Choice(msgspec.Struct, gc=False):
    message: ChatMessage | None = None


class _Completion(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


class _Response(msgspec.Struct, gc=False):
    id: str | None = None
    output: list[InputItem] = []


class _Message(msgspec.Struct, gc=False):
    content: list[dict[str, Any]] = []


_COMPLETION = msgspec.json.Decoder(_Completion)
_RESPONSE = msgspec.json.Decoder(_Response)
_MESSAGE = msgspec.json.Decoder(_Message)


def read_answer(api: Api, body: bytes) -> Answer:
    """Turns of a complete, non-streaming answer; empty when it has none."""
    if len(body) > MAX_BYTES:
        return _NOTHING
    try:
        if api is Api.CHAT:
            choices = _COMPLETION.decode(body).choices[:MAX_CHOICES]
            return Answer([chat_turns([c.message]) for c in choices if c.message is not None])
        if api is Api.RESPONSES:
            return _of_response(_RESPONSE.decode(body))
        if api is Api.MESSAGES:
            return Answer([block_turns(BlockMessage("assistant", _MESSAGE.decode(body).content))])
    except _UNREADABLE:
        pass
    return _NOTHING


def _of_response(response: _Response) -> Answer:
    return Answer([item_turns(response.output)], (response.id,) if response.id else ())


# --- streams ------------------------------------------------------------------------------------


class _Dialect(Protocol):
    """Events of one API, taken one by one."""

    def take(self, data: bytes) -> None: ...

    def answer(self) -> Answer: ...


class StreamAssembler:
    """Puts a stream together: `feed` each chunk, then `finish` once."""

    __slots__ = ("_chunks", "_dialect", "_folded", "_given_up", "_pending")

    def __init__(self, api: Api) -> None:
        self._dialect = _DIALECTS[api]()
        self._chunks: list[bytes] = []
        self._pending = 0
        self._folded = 0
        self._given_up = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; rarely more than an append."""
        if self._given_up:
            return
        self._chunks.append(chunk)
        self._pending += len(chunk)
        if self._pending > FOLD_BYTES:
            self._fold(last=False)

    def finish(self) -> Answer:
        """What the stream said."""
        if not self._given_up:
            self._fold(last=True)
        return _NOTHING if self._given_up else self._dialect.answer()

    def _fold(self, *, last: bool) -> None:
        """Parse all whole events that are there."""
        data = b"".join(self._chunks)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        end = len(data) if last else data.rfind(b"\n") + 1
        self._chunks = [data[end:]] if end < len(data) else []
        self._pending = len(data) - end
        self._folded += end
        if self._folded > MAX_BYTES or self._pending > MAX_BYTES:
            self._give_up()
            return
        try:
            for line in data[:end].split(b"\n"):
                if line.startswith(b"data:") and not line.endswith(b"[DONE]"):
                    self._dialect.take(line[5:])
        except _UNREADABLE:
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        self._chunks = []


class _DeltaFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _DeltaCall(msgspec.Struct, gc=False):
    index: int = 0
    id: str | None = None
    function: _DeltaFunction | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[_DeltaCall] | None = None


class _ChunkChoice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_ChunkChoice] = []


_CHUNK = msgspec.json.Decoder(_Chunk)


class _Call:
    """A tool call that comes in pieces."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []


class _ChatStream:
    """``chat.completion.chunk`` events."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._calls: dict[int, dict[int, _Call]] = {}

    def take(self, data: bytes) -> None:
        for choice in _CHUNK.decode(data).choices:
            delta = choice.delta
            if delta is None or choice.index >= MAX_CHOICES:
                continue
            texts = self._texts.setdefault(choice.index, [])
            if delta.content:
                texts.append(delta.content)
            if delta.tool_calls:
                self._take_calls(self._calls.setdefault(choice.index, {}), delta.tool_calls)

    @staticmethod
    def _take_calls(calls: dict[int, _Call], deltas: list[_DeltaCall]) -> None:
        for delta in deltas:
            call = calls.setdefault(delta.index, _Call())
            call.id = call.id or delta.id or ""
            if delta.function is not None:
                call.name = call.name or delta.function.name or ""
                call.arguments.append(delta.function.arguments or "")

    def answer(self) -> Answer:
        alternatives = []
        for index, texts in self._texts.items():
            calls = self._calls.get(index, {}).values()
            turn = Turn(
                "assistant",
                "".join(texts),
                tuple((call.name, "".join(call.arguments)) for call in calls),
                tuple(call.id for call in calls if call.id),
            )
            alternatives.append([turn])
        return Answer(alternatives)


class _ResponseEvent(msgspec.Struct, gc=False):
    type: str = ""
    response: _Response | None = None


_RESPONSE_EVENT = msgspec.json.Decoder(_ResponseEvent)
_END_OF_RESPONSE = ("response.completed", "response.incomplete")


class _ResponseStream:
    """Typed events of ``/v1/responses``: the last one has the whole answer."""

    def __init__(self) -> None:
        self._answer = _NOTHING

    def take(self, data: bytes) -> None:
        if b'"response.completed"' not in data and b'"response.incomplete"' not in data:
            return
        event = _RESPONSE_EVENT.decode(data)
        if event.type in _END_OF_RESPONSE and event.response is not None:
            self._answer = _of_response(event.response)

    def answer(self) -> Answer:
        return self._answer


class _BlockDelta(msgspec.Struct, gc=False):
    text: str | None = None
    partial_json: str | None = None


class _BlockEvent(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    content_block: dict[str, Any] | None = None
    delta: _BlockDelta | None = None


_BLOCK_EVENT = msgspec.json.Decoder(_BlockEvent)


class _BlockStream:
    """Events of ``/v1/messages``."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}

    def take(self, data: bytes) -> None:
        event = _BLOCK_EVENT.decode(data)
        if event.type == "content_block_start" and event.content_block is not None:
            self._blocks[event.index] = event.content_block
            self._pieces[event.index] = []
        elif event.type == "content_block_delta" and event.delta is not None:
            piece = event.delta.text or event.delta.partial_json
            if piece and event.index in self._pieces:
                self._pieces[event.index].append(piece)

    def answer(self) -> Answer:
        blocks = []
        for index, block in self._blocks.items():
            pieces = "".join(self._pieces[index])
            if block.get("type") == "tool_use" and pieces:
                block["input"] = pieces
            elif block.get("type") == "text":
                block["text"] = f"{block.get('text') or ''}{pieces}"
            blocks.append(block)
        return Answer([block_turns(BlockMessage("assistant", blocks))] if blocks else [])


class _NoStream:
    """APIs whose answers are not part of a conversation."""

    def take(self, data: bytes) -> None:
        pass

    def answer(self) -> Answer:
        return _NOTHING


_DIALECTS: dict[Api, type[_Dialect]] = {
    Api.CHAT: _ChatStream,
    Api.RESPONSES: _ResponseStream,
    Api.MESSAGES: _BlockStream,
    Api.COMPLETIONS: _NoStream,
    Api.EMBEDDINGS: _NoStream,
}
