"""The conversation of one run of a step, as the request that goes to a model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from maestroctl.domain.stage import PromptTokens
from maestroctl.domain.stage_text import StageText, end_of_prompt, write_turn
from maestroctl.domain.workflow import StepSpec, ToolSpec
from maestroctl.live.workflow.sse import Completion

START_TOKENS_PER_BYTE = 0.25
_RATIO_BOUNDS = (0.005, 1.5)
_RATIO_GAIN = 0.2

Message = dict[str, Any]


class Conversation:
    """Messages so far. It grows by one tool round at a time.

    Args:
        step: the declared step.
        system: rendered system text; None = no system message.
        prompt: rendered user text.
        tools: what the model may call, in the order of the step.
    """

    def __init__(
        self, step: StepSpec, system: str | None, prompt: str, tools: Sequence[ToolSpec]
    ) -> None:
        self._step = step
        self._system = system or ""
        self._tools = tuple(tools)
        self._messages: list[Message] = []
        if system:
            self._messages.append({"role": "system", "content": system})
        self._messages.append({"role": "user", "content": prompt})

    def body(self, *, allow_tools: bool) -> dict[str, Any]:
        """The request; the coordinator adds the model.

        Args:
            allow_tools: False = this is the last round, so the model has to answer.
        """
        body: dict[str, Any] = {**self._step.options, "messages": list(self._messages)}
        if self._step.max_tokens is not None:
            body["max_tokens"] = self._step.max_tokens
        if self._tools:
            body["tools"] = [describe_tool(tool) for tool in self._tools]
            if not allow_tools:
                body["tool_choice"] = "none"
        else:
            body.pop("tool_choice", None)
        body["stream"] = True
        return body

    def add_tool_round(self, completion: Completion, results: Sequence[str]) -> None:
        """Append what the model asked for and what came of it, in the same order."""
        self._messages.append(
            {
                "role": "assistant",
                "content": completion.text or None,
                "tool_calls": [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": _json_text(call.arguments)},
                    }
                    for call in completion.tool_calls
                ],
            }
        )
        for call, result in zip(completion.tool_calls, results, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def text(self) -> StageText:
        """What the predictors read."""
        turns = self._messages[1:] if self._system else self._messages
        return StageText(self._system, end_of_prompt(turns, _read_message))

    def num_bytes(self) -> int:
        """Bytes that become prompt tokens, tools included."""
        total = sum(_size(m["content"]) for m in self._messages if m.get("content"))
        for message in self._messages:
            for call in message.get("tool_calls", ()):
                total += _size(call["function"]["name"] + call["function"]["arguments"])
        return total + sum(_size(json.dumps(describe_tool(tool))) for tool in self._tools)

    def prompt_tokens(self, tokens_per_byte: float) -> PromptTokens:
        """Prompt length as estimated from bytes."""
        full = max(1, math.ceil(self.num_bytes() * tokens_per_byte))
        return PromptTokens.of(self.text(), full)


class TokenRatios:
    """Tokens per byte of prompt, per role, corrected by what engines count."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def get(self, role: str) -> float:
        """The running ratio, or a usual one while the role is new."""
        return self._ratios.get(role, START_TOKENS_PER_BYTE)

    def learn(self, role: str, num_bytes: int, num_tokens: int) -> None:
        """Correct the ratio by one exact count."""
        if num_bytes <= 0 or num_tokens <= 0:
            return
        low, high = _RATIO_BOUNDS
        seen = min(max(num_tokens / num_bytes, low), high)
        old = self._ratios.get(role)
        self._ratios[role] = seen if old is None else old + _RATIO_GAIN * (seen - old)


def describe_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool as the request declares it."""
    function: dict[str, Any] = {"name": tool.name, "parameters": dict(tool.parameters)}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def tools_digest(tools: Sequence[ToolSpec]) -> str:
    """Identifies a set of tools by their names."""
    if not tools:
        return ""
    names = "\0".join(sorted(tool.name for tool in tools)).encode()
    return hashlib.blake2b(names, digest_size=8).hexdigest()


def describe_options(options: Mapping[str, Any], *, allow_tools: bool) -> dict[str, str]:
    """The fields of a stage descriptor that come from the step's `options`."""
    form = options.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    choice = options.get("tool_choice", "auto")
    if isinstance(choice, dict):
        function = choice.get("function")
        choice = function.get("name", "auto") if isinstance(function, dict) else "auto"
    return {
        "tool_choice": str(choice) if allow_tools else "none",
        "response_format": kind if isinstance(kind, str) else "text",
        "reasoning": str(options.get("reasoning_effort") or ""),
    }


def _read_message(message: Message) -> tuple[str, str]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], function["arguments"]) for function in functions]
    return message["role"], write_turn(message["content"] or "", calls)


def _json_text(arguments: str) -> str:
    """Arguments as an engine accepts them back; some refuse what is not a JSON object."""
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        parsed = None
    return arguments if isinstance(parsed, dict) and arguments else "{}"


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
