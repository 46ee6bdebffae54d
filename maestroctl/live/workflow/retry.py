"""When a failed stage of a workflow is handed in again, and when its step has failed.

Nobody has seen the output of a workflow's stage before it is complete, so trying again is safe at
any moment; the only question is for how long.

=============================  ================================================================
`Overloaded`, `Unavailable`    again with back-off, until the job's deadline; without one for
                               `LONGEST_WAIT_S` since the first refusal
`Unavailable` for ever         never: no node of the fleet will ever serve it
`UpstreamFailed`               again at once, `MAX_FAILURES` times; one that gave way to others
                               (``preempted``) is treated as overload
anything else                  never: the request itself is at fault
=============================  ================================================================
"""

from __future__ import annotations

from maestroctl.domain.outcome import Outcome
from maestroctl.errors import (
    MODEL_UNAVAILABLE,
    Overloaded,
    RequestError,
    Unavailable,
    UpstreamFailed,
)

LONGEST_WAIT_S = 600.0
"""How long a step waits for a place, without a deadline."""
MAX_FAILURES = 2
"""Failures of engines that a stage is tried again after."""
FIRST_WAIT_S = 0.5
MOST_WAIT_S = 15.0


class StepError(Exception):
    """A run of a step cannot end well.

    Args:
        outcome: for metrics.
        reason: for people.
    """

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


class RetryPolicy:
    """Decides for one stage. Lives from its first try to its last.

    Args:
        deadline_s: absolute, in the caller's clock; None = none.
    """

    def __init__(self, deadline_s: float | None) -> None:
        self._deadline_s = deadline_s
        self._give_up_at_s: float | None = None
        self._wait_s = FIRST_WAIT_S
        self._failures = 0

    def next_wait_s(self, error: RequestError, now_s: float) -> float:
        """Seconds to wait before the next try.

        Raises:
            StepError: there is no next try.
        """
        if error.code == MODEL_UNAVAILABLE:
            raise StepError(Outcome.UNAVAILABLE, str(error)) from error
        if isinstance(error, (Overloaded, Unavailable)) or error.code == Outcome.PREEMPTED.value:
            return self._back_off(error, now_s)
        if isinstance(error, UpstreamFailed):
            self._failures += 1
            if self._failures <= MAX_FAILURES:
                return 0.0
            reason = f"failed {self._failures} times, last: {error}"
            raise StepError(Outcome.FAILED, reason) from error
        raise StepError(Outcome.INVALID, str(error)) from error

    def _back_off(self, error: RequestError, now_s: float) -> float:
        if self._give_up_at_s is None:
            self._give_up_at_s = (
                now_s + LONGEST_WAIT_S if self._deadline_s is None else self._deadline_s
            )
        wait_s = max(self._wait_s, min(error.retry_after_s or 0.0, MOST_WAIT_S))
        self._wait_s = min(self._wait_s * 2, MOST_WAIT_S)
        if now_s + wait_s > self._give_up_at_s:
            overloaded = isinstance(error, Overloaded)
            outcome = Outcome.REJECTED if overloaded else Outcome.UNAVAILABLE
            limit = "the deadline of the job" if self._deadline_s is not None else "ten minutes"
            raise StepError(outcome, f"found no place within {limit}: {error}") from error
        return wait_s
