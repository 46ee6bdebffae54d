"""One way to cut a window into words, shared by the sketch and the static encoder."""

from __future__ import annotations

import re

_WORD = re.compile(r"[^\W\d_]+|\d|[^\w\s]|_", re.UNICODE)
_MAX_WORD_CHARS = 24


def split_words(window: str) -> list[str]:
    """Lower-case words, single digits and single signs, in order.

    Digits stand alone: a number never seen before then still looks like a number.
    """
    return [word[:_MAX_WORD_CHARS] for word in _WORD.findall(window.lower())]
