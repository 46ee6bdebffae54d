"""Filters that templates may use: plain functions over plain values.

Jinja's own filters are not used: some of them reach attributes by name, format without limit or
multiply their input. These do little, and every one is metered by `config.templates`; the few that
can multiply their input say how large the result will be before they make it (`GROWTH`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from jinja2 import Undefined

from maestroctl.config.step_view import StepView, parse_json, split_lines


def as_text(value: Any) -> str:
    """How a value is printed: text as it is, lists and tables as JSON, None as nothing.

    Raises:
        TypeError: it is no plain value.
    """
    if isinstance(value, Undefined):
        return str(value)  # raises, with Jinja's own words about what is missing
    if isinstance(value, str):
        return value
    if isinstance(value, StepView):
        return value.output
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"a {type(value).__name__} cannot be printed")


def _default(value: Any, fallback: Any = "", boolean: bool = False) -> Any:
    missing = isinstance(value, Undefined) or (boolean and not value)
    return fallback if missing else value


def _join(value: Any, separator: str = "") -> str:
    return as_text(separator).join(as_text(item) for item in _items(value))


def _items(value: Any) -> list[Any]:
    """A list, and nothing that merely can be iterated."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, StepView):
        return value.items
    raise TypeError("it needs a list; for text use .lines or the filter lines")


def _truncate(value: Any, length: int = 255, end: str = "...") -> str:
    text = as_text(value)
    return text if len(text) <= length else text[: max(0, length - len(end))] + end


def _indent(value: Any, width: int = 4, first: bool = False) -> str:
    pad = " " * width
    return (pad if first else "") + as_text(value).replace("\n", "\n" + pad)


def _split(value: Any, separator: str | None = None) -> list[str]:
    return as_text(value).split(separator)


def _number(value: Any, default: int = 0) -> int:
    try:
        return int(float(value)) if not isinstance(value, int) else int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _float(value: Any, default: float = 0.0) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _length(value: Any) -> int:
    return len(as_text(value)) if isinstance(value, (str, StepView)) else len(_items(value))


def _unique(value: Any) -> list[Any]:
    seen: set[str] = set()
    kept = []
    for item in _items(value):
        key = json.dumps(item, sort_keys=True, default=str)
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept


def _table_items(value: Any) -> list[Any]:
    if not isinstance(value, Mapping):
        raise TypeError("it needs a table")
    return [list(pair) for pair in value.items()]


FILTERS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "capitalize": lambda value: as_text(value).capitalize(),
    "count": _length,
    "d": _default,
    "default": _default,
    "first": lambda value: _items(value)[0],
    "float": _float,
    "from_json": lambda value: parse_json(as_text(value)),
    "indent": _indent,
    "int": _number,
    "items": _table_items,
    "join": _join,
    "last": lambda value: _items(value)[-1],
    "length": _length,
    "lines": lambda value: split_lines(as_text(value)),
    "list": _items,
    "lower": lambda value: as_text(value).lower(),
    "max": lambda value: max(_items(value)),
    "min": lambda value: min(_items(value)),
    "replace": lambda value, old, new: as_text(value).replace(as_text(old), as_text(new)),
    "reverse": lambda value: _items(value)[::-1],
    "round": lambda value, digits=0: round(float(value), int(digits)),
    "sort": lambda value, reverse=False: sorted(_items(value), reverse=bool(reverse)),
    "split": _split,
    "string": as_text,
    "sum": lambda value: sum(_items(value)),
    "title": lambda value: as_text(value).title(),
    "tojson": lambda value: json.dumps(_plain(value), ensure_ascii=False),
    "trim": lambda value: as_text(value).strip(),
    "truncate": _truncate,
    "unique": _unique,
    "upper": lambda value: as_text(value).upper(),
    "wordcount": lambda value: len(as_text(value).split()),
}
"""By the name a template uses."""


def _plain(value: Any) -> Any:
    if isinstance(value, StepView):
        return value.output
    if isinstance(value, Undefined):
        return str(value)
    return value


def _replace_growth(value: Any, old: Any, new: Any) -> int:
    text, old_text = as_text(value), as_text(old)
    hits = text.count(old_text) if old_text else len(text) + 1
    return len(text) + hits * len(as_text(new))


def _join_growth(value: Any, separator: Any = "") -> int:
    items = _items(value)
    return len(items) * len(as_text(separator)) + sum(len(as_text(item)) for item in items)


def _indent_growth(value: Any, width: int = 4, first: bool = False) -> int:
    text = as_text(value)
    return len(text) + (text.count("\n") + bool(first)) * max(0, int(width))


def _truncate_growth(value: Any, length: int = 255, end: str = "...") -> int:
    return min(len(as_text(value)), max(0, int(length))) + len(as_text(end))


GROWTH: Mapping[str, Callable[..., int]] = {
    "replace": _replace_growth,
    "join": _join_growth,
    "indent": _indent_growth,
    "truncate": _truncate_growth,
}
"""Characters of the result, worked out before it is made."""
