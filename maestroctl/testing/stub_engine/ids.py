"""Identifiers that no other process makes: a random start, then a count."""

from __future__ import annotations

import itertools
import secrets

_START = secrets.token_hex(10)
_numbers = itertools.count()


def new_id() -> str:
    """32 hexadecimal digits, like vLLM's, at a fraction of the cost of a UUID."""
    return f"{_START}{next(_numbers):012x}"
