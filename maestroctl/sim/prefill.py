"""Prompts on their way into KV."""

from __future__ import annotations

from collections.abc import Iterator

from maestroctl.sim.sequence import Sequence


class Prefill:
    """Owned by one engine model.

    Attributes:
        sequences: in order of admission.
        kv_tokens: held for them, whole prompts from the start.
    """

    __slots__ = ("kv_tokens", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.kv_tokens = 0

    def add(self, sequence: Sequence) -> None:
        """A prompt is admitted."""
        self.sequences.append(sequence)
        self.kv_tokens += sequence.context

    def remove(self, sequence: Sequence) -> None:
        """It goes before it is done."""
        self.sequences.remove(sequence)
        self.kv_tokens -= sequence.context

    def next_tokens(self, room: int) -> int:
        """Tokens that the next iteration carries, at most `room`."""
        pending = 0
        for sequence in self.sequences:
            pending += sequence.todo
            if pending >= room:
                return room
        return pending

    def hand_out(self, tokens: int) -> Iterator[Sequence]:
        """Give the prompts the tokens of an iteration; those that are done come out."""
        done = []
        for sequence in self.sequences:
            taken = min(tokens, sequence.todo)
            sequence.todo -= taken
            tokens -= taken
            if sequence.todo == 0:
                done.append(sequence)
            if tokens == 0:
                break
        if done:
            self.sequences = [sequence for sequence in self.sequences if sequence.todo]
        for sequence in done:
            self.kv_tokens -= sequence.context
            yield sequence
