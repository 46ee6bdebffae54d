"""What an engine still holds of earlier prompts, by conversation, least recently used first.

An entry is one conversation (a role of a job): its next prompt begins with what it had before, so
that much need not be prefilled. Entries live in KV that no running sequence uses and give way to
those, oldest first. Sleeping and stopping lose all of them.
"""

from __future__ import annotations


class PrefixCache:
    """Owned by one engine model's host."""

    __slots__ = ("_tokens", "_total")

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}  # oldest first
        self._total = 0

    def take(self, conversation: str, prompt_tokens: int, room_tokens: float) -> int:
        """Tokens of the prompt that are cached; they become part of the running sequence.

        Args:
            room_tokens: KV that no sequence uses at the moment.
        """
        self._shrink(room_tokens)
        found = self._tokens.pop(conversation, 0)
        self._total -= found
        return min(found, prompt_tokens - 1)

    def keep(self, conversation: str, tokens: int, room_tokens: float) -> None:
        """The conversation's sequence has ended with this much in KV."""
        self._total += tokens - self._tokens.pop(conversation, 0)
        self._tokens[conversation] = tokens
        self._shrink(room_tokens)

    def clear(self) -> None:
        """The KV is gone."""
        self._tokens.clear()
        self._total = 0

    def _shrink(self, room_tokens: float) -> None:
        while self._total > room_tokens:
            oldest = next(iter(self._tokens))
            self._total -= self._tokens.pop(oldest)
