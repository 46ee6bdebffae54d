"""Plain counts over the end of a prompt: shape, punctuation, and words that announce a format."""

from __future__ import annotations

import math

_NEAR_CHARS = 600
"""Counts look at the end of the prompt, where the question or the last observation stands."""

_MARKERS = (
    "```",
    "thought",
    "action",
    "observation",
    "<info>",
    "finish",
    "error",
    "?",
    "json",
    "{",
    "please",
    "search",
    "def ",
    "import ",
    "class ",
    "select",
    "only one",
    "confirm",
    "traceback",
    "###",
    "test",
    "step",
)

NAMES: tuple[str, ...] = (
    "tail_chars",
    "tail_lines",
    "near_words",
    "near_digit_share",
    "near_bracket_share",
    "last_line_chars",
    "last_char",
    "non_ascii_share",
    *(f"count_{marker.strip()}" for marker in _MARKERS),
)


def surface_features(tail: str) -> list[float]:
    """Figures in the order of `NAMES`; total for any text, the empty one included."""
    near = tail[-_NEAR_CHARS:].lower()
    size = len(near) + 1
    digits = brackets = wide = 0
    for char in near:
        if char.isdigit():
            digits += 1
        elif char in _BRACKETS:
            brackets += 1
        elif char > "\x7f":
            wide += 1
    last = tail.rstrip()[-1:]
    return [
        math.log1p(len(tail)),
        float(tail.count("\n")),
        float(near.count(" ") + near.count("\n")),
        digits / size,
        brackets / size,
        math.log1p(len(tail) - tail.rfind("\n") - 1),
        float(min(ord(last), 128)) if last else 0.0,
        wide / size,
        *(float(near.count(marker)) for marker in _MARKERS),
    ]


def count_digits(text: str) -> int:
    """ASCII digits of a text; ten scans in C are faster than one in Python."""
    return sum(map(text.count, "0123456789"))


_BRACKETS = frozenset("{}[]()<>\"'")
