"""Checks one row of a stage trace: names are there, counts are counts, labels are labels.

What is missing, null or NaN (which is how some writers spell null) counts as unknown; anything else
that is not what the field says is refused, because a guess would end up in a label.
"""

from __future__ import annotations

import math
from typing import Any

_NAMES = ("source", "app", "job_id", "task_id")
_COUNTS = (
    "stage_index",
    "output_tokens",
    "prompt_tokens",
    "tools_available",
    "invocation_index",
)
_TEXTS = ("role", "phase", "topology", "model", "system_text", "prompt_tail")
_MOST = 10**9


def check_row(raw: Any) -> dict[str, Any]:
    """The row with names as text, counts as int or None, ``tool_call`` as bool or None.

    Raises:
        ValueError: it is not a row; the message says which field and what was found.
    """
    if not isinstance(raw, dict):
        raise ValueError("it is no object")
    if missing := [name for name in (*_NAMES, "stage_index") if _unknown(raw.get(name))]:
        raise ValueError(f"no {', '.join(missing)}")
    row = dict(raw)
    for name in _NAMES:
        row[name] = _name(name, raw[name])
    for name in _COUNTS:
        row[name] = _count(name, raw.get(name))
    for name in _TEXTS:
        row[name] = _text(name, raw.get(name))
    row["tool_call"] = _flag("tool_call", raw.get("tool_call"))
    return row


def _unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _name(field: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{field} is {value!r:.60}, not a name")
    return str(value)


def _text(field: str, value: Any) -> str | None:
    if _unknown(value):
        return None
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r:.60}, not text")
    return value


def _count(field: str, value: Any) -> int | None:
    if _unknown(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise ValueError(f"{field} is {value!r:.60}, not a number from 0 on (null = unknown)")
    return int(value)


def _flag(field: str, value: Any) -> bool | None:
    if _unknown(value):
        return None
    if value not in (True, False):
        raise ValueError(f"{field} is {value!r:.60}, neither true nor false (null = unknown)")
    return bool(value)
