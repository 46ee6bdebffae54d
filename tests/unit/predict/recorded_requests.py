"""Recorded jobs as the OpenAI requests their agents would have sent."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

from maestroctl.domain.stage_text import MAX_TAIL_CHARS

Row = dict[str, Any]
Message = dict[str, Any]

_TURN = re.compile(r"\n(user|assistant|tool): ")
_CALL = re.compile(r"(\w+)\((\{.*\})\)", re.DOTALL)
_BEFORE = "what was said before the recorded end of the prompt. " * 9


def recorded_jobs() -> list[list[Row]]:
    """The rows of each job, in order, two habits of single sources apart.

    A prompt of one user turn is its text alone; one source writes the speaker before it. The end
    of a longer one has `MAX_TAIL_CHARS`; what was scrubbed from it made some shorter.
    """
    text = Path(__file__).with_name("recorded_jobs.jsonl").read_text("utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    for row in rows:
        head, *turns = _TURN.split(row["prompt_tail"])
        if not head and turns[:-1] == ["user"]:
            row["prompt_tail"] = turns[-1]
        elif head and turns:
            row["prompt_tail"] = (_BEFORE + row["prompt_tail"])[-MAX_TAIL_CHARS:]
    return [list(group) for _, group in groupby(rows, key=lambda row: row["job_id"])]


def request_of(row: Row) -> dict[str, Any]:
    """The chat request of a stage; a prompt that was cut gets a start of its own."""
    messages = messages_of(row["prompt_tail"])
    if row["system_text"]:
        messages.insert(0, {"role": "system", "content": row["system_text"] + "..."})
    document = {"model": row["model"] or "m", "messages": messages}
    if row["tools_available"]:
        names = [f"tool_{number}" for number in range(row["tools_available"])]
        document["tools"] = [{"type": "function", "function": {"name": name}} for name in names]
    return document


def messages_of(text: str) -> list[Message]:
    """The messages that a recorded prompt was made of."""
    head, *turns = _TURN.split(text)
    cut = len(text) == MAX_TAIL_CHARS
    if not turns:
        return [{"role": "user", "content": _BEFORE * cut + head}]
    messages = [{"role": "tool", "tool_call_id": "x", "content": _BEFORE + head}] if cut else []
    for role, said in zip(turns[::2], turns[1::2], strict=True):
        call = _CALL.fullmatch(said) if role == "assistant" else None
        if call:
            function = {"name": call[1], "arguments": call[2]}
            calls = [{"id": "x", "type": "function", "function": function}]
            messages.append({"role": role, "content": None, "tool_calls": calls})
        else:
            messages.append({"role": role, "content": said})
            if role == "tool":
                messages[-1]["tool_call_id"] = "x"
    return messages
