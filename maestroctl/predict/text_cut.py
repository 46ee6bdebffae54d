"""The one rule for how much text a predictor sees.

The traces hold at most this much, and a predictor that saw more when serving than when it was
trained would meet rows it has never seen. It also bounds the cost of a 200k-token prompt.
"""

from __future__ import annotations

MAX_SYSTEM_CHARS = 1000
MAX_TAIL_CHARS = 2000


def cut_system(system: str) -> str:
    """The start of a system prompt."""
    return system[:MAX_SYSTEM_CHARS]


def cut_tail(prompt: str) -> str:
    """The end of what the model is given."""
    return prompt[-MAX_TAIL_CHARS:]
