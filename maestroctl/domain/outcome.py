"""How a request or a job ended: a small enum for metrics, a precise reason for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Every stage ends in exactly one of these."""

    FINISHED = "finished"
    REJECTED = "rejected"
    """Full: the caller may try again."""
    UNAVAILABLE = "unavailable"
    """Nothing can serve it: no node, no room ever, the engine has failed, or it waited too long."""
    INVALID = "invalid"
    """The engine answered 4xx: the caller's fault."""
    FAILED = "failed"
    """The engine died or answered 5xx, and no retry was left."""
    CANCELLED = "cancelled"
    """The caller went away, or the job was cancelled."""
    PREEMPTED = "preempted"
    """Aborted to free memory (degradation level 5)."""
    INTERRUPTED = "interrupted"
    """A process of ours died or was stopped under it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Exact token counts, from the engine."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0


class JobStatus(StrEnum):
    """Life of a job."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def is_final(self) -> bool:
        """No event changes it any more."""
        return self is not JobStatus.RUNNING
