"""Times and sizes: one parser and one formatter for both, used everywhere.

Units in code are seconds, bytes and tokens, said by the suffix of the name
(`wait_s`, `free_bytes`, `prompt_tokens`). Text appears only at the edges.
"""

from __future__ import annotations

import math
import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_BYTE_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1 << 40,
}
_SECOND_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(value: str | int | float) -> int:
    """Size in bytes of ``"40 GiB"``, ``"512MB"`` or a bare number of bytes.

    Raises:
        ValueError: not a size, or negative, or not finite.
    """
    return round(_parse(value, _BYTE_UNITS, default_unit="b", what="size", example="40 GiB"))


def parse_seconds(value: str | int | float) -> float:
    """Seconds in ``"250ms"``, ``"30m"``, ``"2 h"`` or a bare number of seconds.

    Raises:
        ValueError: not a time, or negative, or not finite.
    """
    return _parse(value, _SECOND_UNITS, default_unit="s", what="time", example="250ms")


def _parse(
    value: str | int | float,
    units: dict[str, float] | dict[str, int],
    default_unit: str,
    what: str,
    example: str,
) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"expected a {what} such as {example!r}, found {value!r}")
    if isinstance(value, str):
        match = _NUMBER_AND_UNIT.fullmatch(value)
        if match is None or (match[2] or default_unit).lower() not in units:
            raise ValueError(f"expected a {what} such as {example!r}, found {value!r}")
        number = float(match[1]) * units[(match[2] or default_unit).lower()]
    else:
        number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"a {what} is finite and not negative, found {value!r}")
    return number


def format_bytes(num_bytes: float) -> str:
    """Short text with a binary unit: ``1.5 GiB``, ``0 B``."""
    if abs(num_bytes) < KIB:
        return f"{num_bytes:.0f} B"
    for unit, size in (("KiB", KIB), ("MiB", MIB), ("GiB", GIB)):
        if abs(num_bytes) < size * 1024 or unit == "GiB":
            return f"{num_bytes / size:.{0 if abs(num_bytes) >= size * 100 else 1}f} {unit}"
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Short text: ``850 ms``, ``2.4 s``, ``3m 05s``, ``2h 10m``."""
    if seconds < 0.0005:
        return "0 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    return f"{minutes // 60}h {minutes % 60:02d}m"
