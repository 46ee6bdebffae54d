"""The token clock: all sequences that decode, on one integer.

Every decoding sequence gains one token per iteration, so V (iterations done) serves all of them: a
sequence that joins at V with n tokens to go ends at V + n, and a heap of such marks says what
happens next. A sequence that leaves early leaves its marks behind; its epoch tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from maestroctl.sim.sequence import Sequence

FINISH, OUTGROW = 0, 1
"""Kinds of marks: the last token; the first that was not booked."""


class TokenClock:
    """Owned by one engine model.

    Attributes:
        v: iterations done.
        decoding: sequences on the clock, by name.
    """

    __slots__ = ("_marks", "_sum_base", "decoding", "v")

    def __init__(self) -> None:
        self.v = 0
        self.decoding: dict[str, Sequence] = {}
        self._sum_base = 0  # over `decoding`
        self._marks: list[tuple[int, int, int, int, Sequence]] = []  # (V, order, kind, epoch, ..)

    @property
    def kv_tokens(self) -> int:
        """Tokens in KV of all that decode."""
        return self._sum_base + self.v * len(self.decoding)

    def join(self, sequence: Sequence) -> None:
        """It decodes from now on."""
        sequence.base = sequence.context - self.v
        sequence.joined = self.v
        self._sum_base += sequence.base
        self.decoding[sequence.name] = sequence
        self._mark(self.v + sequence.left, FINISH, sequence)
        self.mark_outgrow(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It decodes no more; what it has gained is written into it."""
        del self.decoding[sequence.name]
        self._sum_base -= sequence.base
        gained = self.v - sequence.joined
        sequence.context += gained
        sequence.left -= gained
        sequence.epoch += 1

    def mark_outgrow(self, sequence: Sequence) -> None:
        """Stop the clock when it passes its booking; a mark of an older booking says nothing."""
        if sequence.booked < sequence.context + sequence.left:
            self._mark(max(self.v, sequence.booked + 1 - sequence.base), OUTGROW, sequence)

    def iterations_ahead(self) -> int:
        """Iterations until the next mark; something decodes."""
        marks = self._marks
        while marks[0][3] != marks[0][4].epoch:
            heappop(marks)
        return marks[0][0] - self.v

    def reached(self) -> Iterator[tuple[int, Sequence]]:
        """Kind and sequence of every mark that V has reached, in order."""
        marks, v = self._marks, self.v
        while marks and marks[0][0] <= v:
            _, _, kind, epoch, sequence = heappop(marks)
            if epoch == sequence.epoch:
                yield kind, sequence

    def tokens_left(self, ahead: int) -> dict[str, int]:
        """Output tokens still to come of each sequence, `ahead` iterations from V, by name."""
        v = self.v + ahead
        return {
            name: max(0, sequence.left - (v - sequence.joined))
            for name, sequence in self.decoding.items()
        }

    def _mark(self, v: int, kind: int, sequence: Sequence) -> None:
        heappush(self._marks, (v, sequence.order, kind, sequence.epoch, sequence))
