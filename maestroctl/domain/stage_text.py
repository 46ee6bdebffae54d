"""The text of a stage as the predictors read it, cut where it is made.

The rule is that of the recorded traces, which hold no more: the start of the system text, and the
end of all else in the order in which the model is given it. A predictor that read more, or in
another order, would meet rows that it was never trained on. It also bounds the cost of a prompt of
200,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

MAX_SYSTEM_CHARS = 1000
MAX_TAIL_CHARS = 2000
_CHARS_PER_TOKEN = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageText:
    """What the predictors read; never enters a core, a log or a metric.

    Attributes:
        system: start of the system text.
        tail: end of the prompt. What is handed in may be longer; it is cut.
    """

    system: str = field(default="", repr=False)
    tail: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "system", self.system[:MAX_SYSTEM_CHARS])
        object.__setattr__(self, "tail", self.tail[-MAX_TAIL_CHARS:])


def count_tokens(text: str) -> int:
    """Tokens of a text that was cut, at four characters each: one count for every model."""
    return -(-len(text) // _CHARS_PER_TOKEN)


def end_of_prompt(turns: Sequence[T], read: Callable[[T], tuple[str, str]]) -> str:
    """The end of a conversation, its system text apart.

    One user turn is its text alone, as single prompts are recorded. A longer conversation names
    the speaker of each turn.

    Args:
        turns: in the order in which the model is given them.
        read: speaker and words of a turn; asked only of those that reach into the end.
    """
    parts: list[str] = []
    missing = MAX_TAIL_CHARS
    for turn in reversed(turns):
        speaker, words = read(turn)
        if len(turns) == 1 and speaker == "user":
            return words
        parts += (words, f"\n{speaker}: ")
        missing -= len(words) + len(parts[-1])
        if missing <= 0:
            break
    return "".join(reversed(parts))


def write_turn(text: str, calls: Iterable[tuple[str, str]]) -> str:
    """What a turn says: its text and the tools it calls, ``name(arguments)``."""
    return "\n".join(filter(None, (text, *(f"{name}({given})" for name, given in calls))))
