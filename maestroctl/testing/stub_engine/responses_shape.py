"""``/v1/responses`` in its simple form: text or one function call, streamed or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from maestroctl.testing.stub_engine.http_server import dump_json
from maestroctl.testing.stub_engine.ids import new_id
from maestroctl.testing.stub_engine.shapes import Shape
from maestroctl.testing.stub_engine.text import BadRequest


def responses_messages(body: dict[str, Any]) -> dict[str, Any]:
    """A chat request that says the same as a responses request.

    Raises:
        BadRequest: no usable ``input``.
    """
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadRequest.missing("input")
    messages = [_as_message(item) for item in items]
    if isinstance(body.get("instructions"), str):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    tools = [
        {"type": "function", "function": tool}
        for tool in body.get("tools") or ()
        if tool.get("type") == "function"
    ]
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {
        "messages": messages,
        "tools": tools,
        "tool_choice": choice,
        "max_tokens": body.get("max_output_tokens"),
    }


def _as_message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": str(item.get("output", ""))}
    return {"role": item.get("role", "user"), "content": item.get("content")}


class ResponsesShape(Shape):
    """One response object with one output item.

    Args:
        tool_name: when set, the text is the JSON arguments of a call of this function.
        body: the request, parts of which are echoed.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_s: int,
        prompt_tokens: int,
        tool_name: str | None,
        body: dict[str, Any],
    ) -> None:
        super().__init__(answer_id, model, created_s, prompt_tokens)
        self._tool_name = tool_name
        self._body = body
        self._item_id = ("fc_" if tool_name else "msg_") + new_id()
        self._text: list[str] = []
        self._num_events = 0

    def begin(self) -> Sequence[bytes]:
        """The response, its item and its part."""
        events = [
            self._event("response.created", response=self._response("in_progress", [], None)),
            self._event("response.in_progress", response=self._response("in_progress", [], None)),
            self._item_event("response.output_item.added", item=self._item("", "in_progress")),
        ]
        if self._tool_name is None:
            events.append(self._part_event("response.content_part.added", part=_part("")))
        return events

    def delta(self, text: str, completion_tokens: int) -> bytes:
        """One piece of text, or of arguments; these events carry no usage."""
        del completion_tokens
        self._text.append(text)
        if self._tool_name is not None:
            kind = "response.function_call_arguments.delta"
            return self._item_event(kind, item_id=self._item_id, delta=text)
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def end(self, rest: str, reason: str, completion_tokens: int) -> Sequence[bytes]:
        """The closing events, from the inside out."""
        events = [self.delta(rest, completion_tokens)] if rest else []
        text = "".join(self._text)
        if self._tool_name is None:
            events.append(self._part_event("response.output_text.done", text=text, logprobs=[]))
            events.append(self._part_event("response.content_part.done", part=_part(text)))
        else:
            kind = "response.function_call_arguments.done"
            item = {"item_id": self._item_id, "name": self._tool_name, "arguments": text}
            events.append(self._item_event(kind, **item))
        item = self._item(text, "completed")
        events.append(self._item_event("response.output_item.done", item=item))
        whole = self.whole(text, reason, completion_tokens)
        kind = "incomplete" if whole["status"] == "incomplete" else "completed"
        events.append(self._event(f"response.{kind}", response=whole))
        return events

    def whole(self, text: str, reason: str, completion_tokens: int) -> dict[str, Any]:
        """The response object."""
        status = {"length": "incomplete", "abort": "incomplete"}.get(reason, "completed")
        response = self._response(status, [self._item(text, "completed")], completion_tokens)
        if status == "incomplete":
            cause = "max_output_tokens" if reason == "length" else reason
            response["incomplete_details"] = {"reason": cause}
        return response

    def _response(
        self, status: str, output: list[dict[str, Any]], completion_tokens: int | None
    ) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": "response",
            "created_at": self.created_s,
            "status": status,
            "model": self.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": self._body.get("instructions"),
            "metadata": self._body.get("metadata"),
            "parallel_tool_calls": True,
            "temperature": self._body.get("temperature", 1.0),
            "top_p": self._body.get("top_p", 1.0),
            "tool_choice": self._body.get("tool_choice", "auto"),
            "tools": self._body.get("tools") or [],
            "usage": None if completion_tokens is None else self._usage(completion_tokens),
        }

    def _usage(self, completion_tokens: int) -> dict[str, Any]:
        return {
            "input_tokens": self.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + completion_tokens,
        }

    def _item(self, text: str, status: str) -> dict[str, Any]:
        if self._tool_name is not None:
            call = {"type": "function_call", "id": self._item_id, "status": status}
            call_id = "call_" + self._item_id.removeprefix("fc_")
            return {**call, "call_id": call_id, "name": self._tool_name, "arguments": text}
        content = [_part(text)] if status == "completed" else []
        item = {"type": "message", "id": self._item_id, "status": status, "role": "assistant"}
        return {**item, "content": content}

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, item_id=self._item_id, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, output_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump_json(data))


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
