"""When the next refit on own history begins: a rule over the record of the last one. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

FAILURE_PAUSES_S = (60.0, 300.0, 1800.0, 7200.0, 21600.0)
"""Rest after the first, second, ... failure in a row."""
REST_FACTOR = 20.0
"""Rest after a refit that ended, in durations of it: refits take 5 % of one core at most."""


class RefitOutcome(StrEnum):
    """What the last refit came to."""

    RUNNING = "running"
    SWAPPED_IN = "swapped in"
    NO_BETTER = "no better"
    TOO_FEW = "too few stages"
    FAILED = "failed"
    CALLED_OFF = "called off"
    """The coordinator was stopped, or the model was reset, before it had ended."""
    DROPPED = "dropped"
    """Somebody reset the refitted model."""


@dataclass(frozen=True, slots=True)
class RefitRecord:
    """The last refit, as it is written down before it begins and when it ends.

    Attributes:
        at: when it began, Unix seconds.
        since: observations made later than this count towards the next one: when the last refit
            that did not fail began.
        failures: in a row, this one included.
        seconds: it took.
        jobs, stages: used. judged: stages of the newest jobs that it was judged by.
        mae_told, mae_refitted: mean absolute errors on those, tokens: of what was told when they
            ran, and of the candidate.
    """

    at: float
    result: RefitOutcome
    since: float = 0.0
    reason: str = ""
    failures: int = 0
    seconds: float = 0.0
    jobs: int = 0
    stages: int = 0
    judged: int = 0
    mae_told: float | None = None
    mae_refitted: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> RefitRecord:
        """The inverse of `to_json`; one that was cut short counts as a failure.

        Raises:
            TypeError, KeyError, ValueError: another version wrote it.
        """
        record = cls(**{**raw, "result": RefitOutcome(raw["result"])})
        if record.result is RefitOutcome.RUNNING:
            return record.failed("the coordinator ended meanwhile")
        return record

    def failed(self, reason: str, seconds: float = 0.0) -> RefitRecord:
        """The same, failed once more."""
        return replace(
            self,
            result=RefitOutcome.FAILED,
            reason=reason,
            failures=self.failures + 1,
            seconds=seconds,
        )


def is_due(after_stages: int, new_stages: int, last: RefitRecord | None, now: float) -> bool:
    """Whether a refit is to begin.

    Args:
        after_stages: as configured; 0 = never.
        new_stages: observed later than `last.since`.
        last: None = there was none.
        now: Unix seconds.
    """
    if after_stages == 0 or new_stages < after_stages:
        return False
    return last is None or now - last.at >= _rest_s(last)


def _rest_s(last: RefitRecord) -> float:
    if last.failures:
        return FAILURE_PAUSES_S[min(last.failures, len(FAILURE_PAUSES_S)) - 1]
    return (1 + REST_FACTOR) * last.seconds
