"""Why a decision was taken, in a form that `explain` prints and `replay` compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing that could have been chosen.

    `terms` are the parts of its score, in seconds, or what was counted: bytes in a ``degrade``
    record, slots in an ``order`` record.
    """

    name: str
    score: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    rejected: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision of a core.

    Attributes:
        at_s: time of the event that caused it.
        kind: ``order``, ``choose_model``, ``route``, ``admit``, ``residency``, ``degrade``,
            ``lifecycle``, ``refuse``, ``predict`` or ``stale``.
        subject: stage, engine or job concerned.
        choice: what was chosen; empty when nothing could be.
        reason: one short sentence.
        candidates: at most 16; `rejected_counts` has the rest, per reason.
        input_age_s: age of the oldest snapshot that was used.
    """

    at_s: float
    kind: str
    subject: str
    choice: str
    reason: str
    candidates: tuple[Candidate, ...] = ()
    rejected_counts: Mapping[str, int] = field(default_factory=dict)
    input_age_s: float = 0.0
