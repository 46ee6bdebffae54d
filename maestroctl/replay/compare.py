"""Effects that were recorded beside effects of today, and their difference as a person reads it."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maestroctl.scheduler.effects import RecordDecision
from maestroctl.telemetry.event_codec import Effect, Entry, encode_value

_CONTEXT_LINES = 3
_NAMES = ("stage_id", "job_id", "node", "ref")
"""Fields inside an event that say what it is about."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One event that was answered otherwise than recorded.

    Attributes:
        number: of the event, from 1.
        at_s: seconds after the first event.
        event: what the core was told.
        expected, got: effects as readable lines, recorded and today's.
        only_explained: the same is done, for another reason or with other words.
    """

    number: int
    at_s: float
    event: Any
    expected: tuple[str, ...]
    got: tuple[str, ...]
    only_explained: bool

    @property
    def diff(self) -> tuple[str, ...]:
        """Lines with ``-`` are recorded, with ``+`` today's, with a space both."""
        lines = difflib.unified_diff(self.expected, self.got, n=_CONTEXT_LINES, lineterm="")
        return tuple(line for line in lines if not line.startswith(("---", "+++", "@@")))


def compare(
    entry: Entry, effects: Sequence[Effect], error: str, number: int, began_s: float
) -> Difference | None:
    """None when today's core answers as recorded.

    Args:
        effects, error: of today's core.
        number: of the entry, from 1. began_s: time of the first one.
    """
    if error == entry.error and _same(entry.effects, effects):
        return None
    same_actions = error == entry.error and _same(actions(entry.effects), actions(effects))
    return Difference(
        number,
        entry.now_s - began_s,
        entry.event,
        _lines(entry.effects, entry.error),
        _lines(effects, error),
        only_explained=same_actions,
    )


def actions(effects: Iterable[Effect]) -> list[Effect]:
    """What is done, without why."""
    return [effect for effect in effects if not isinstance(effect, RecordDecision)]


def _same(expected: Sequence[Effect], got: Sequence[Effect]) -> bool:
    if len(expected) != len(got):
        return False
    return all(
        type(a) is type(b) and (a == b or encode_value(a) == encode_value(b))
        for a, b in zip(expected, got, strict=True)
    )


def _lines(effects: Sequence[Effect], error: str) -> tuple[str, ...]:
    if error:
        return (f"raises {error}",)
    lines: list[str] = []
    for effect in effects:
        lines.append(type(effect).__name__)
        lines += _fields(effect, "  ")
    return tuple(lines) or ("nothing",)


def describe_event(event: Any) -> str:
    """One line: the kind of event and its short fields."""
    parts = [
        f"{field.name}={_text(value)}"
        for field in dataclasses.fields(event)
        for value in [getattr(event, field.name)]
        if not dataclasses.is_dataclass(value) and not isinstance(value, (tuple, Mapping))
    ]
    inside = [getattr(event, field.name) for field in dataclasses.fields(event)]
    parts += [
        f"{name}={_text(getattr(value, name))}"
        for value in inside
        for name in _NAMES
        if dataclasses.is_dataclass(value) and hasattr(value, name)
    ]
    return " ".join([type(event).__name__, *parts])


def _fields(value: Any, indent: str) -> list[str]:
    """One line per field; what has parts is folded out below its name."""
    lines: list[str] = []
    if dataclasses.is_dataclass(value):
        items: list[tuple[Any, Any]] = [
            (field.name, getattr(value, field.name)) for field in dataclasses.fields(value)
        ]
    elif isinstance(value, Mapping):
        items = list(value.items())
    else:
        items = list(enumerate(value, start=1))
    for name, item in items:
        has_parts = dataclasses.is_dataclass(item) or isinstance(item, (Mapping, tuple, list))
        if not has_parts:
            lines.append(f"{indent}{name}: {_text(item)}")
        elif dataclasses.is_dataclass(item) or len(item):
            lines.append(f"{indent}{name}:")
            lines += _fields(item, indent + "  ")
    return lines


def _text(value: Any) -> str:
    return str(value)
