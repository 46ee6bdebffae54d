"""Formulas over records: the same figures from live rows and from a simulator's.

Nothing here keeps state, reads a clock or knows where a record came from. Symbols are those of
``docs/metrics.md``: a = arrived, d = dispatched, f = first byte, e = ended (seconds on one clock),
n = output tokens. A figure that a record cannot give is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from maestroctl.domain.ids import HOST_DEVICE
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.snapshot import NodeSnapshot


class StageAttempt(Protocol):
    """What is read of one attempt of a stage; `store.rows.StageAttemptRow` is one."""

    @property
    def job_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def service_class(self) -> str: ...
    @property
    def outcome(self) -> Outcome | None: ...
    @property
    def arrived_at(self) -> float: ...
    @property
    def dispatched_at(self) -> float | None: ...
    @property
    def first_byte_at(self) -> float | None: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def output_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def activation(self) -> str: ...
    @property
    def activation_s(self) -> float: ...
    @property
    def streamed(self) -> bool: ...


class Job(Protocol):
    """What is read of a job; `store.rows.JobRow` is one."""

    @property
    def job_id(self) -> str: ...
    @property
    def service_class(self) -> str: ...
    @property
    def status(self) -> JobStatus: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def deadline_s(self) -> float | None: ...
    @property
    def finished_at(self) -> float | None: ...


# --- one stage ----------------------------------------------------------------------------------


def ttft_s(attempt: StageAttempt) -> float | None:
    """Time to first token, f - a: queue, wake and prefill included.

    An answer that is not streamed comes with its first byte, so there it is the whole latency.
    """
    if attempt.first_byte_at is None:
        return None
    return max(0.0, attempt.first_byte_at - attempt.arrived_at)


def tpot_s(attempt: StageAttempt) -> float | None:
    """Time per output token after the first, (e - f) / (n - 1); None below two tokens.

    Only of finished stages, because a broken one stopped for another reason than its last token,
    and only of streamed ones, because else f is no time of a token.
    """
    first, end, tokens = attempt.first_byte_at, attempt.ended_at, attempt.output_tokens
    if attempt.outcome is not Outcome.FINISHED or first is None or end is None:
        return None
    if not attempt.streamed or tokens is None or tokens < 2:
        return None
    return max(0.0, end - first) / (tokens - 1)


def queue_wait_s(attempt: StageAttempt) -> float | None:
    """Seconds in the coordinator's queue, d - a; earlier attempts of the stage count as waiting."""
    if attempt.dispatched_at is None:
        return None
    return max(0.0, attempt.dispatched_at - attempt.arrived_at)


def latency_s(attempt: StageAttempt) -> float | None:
    """Seconds from arrival to the end, e - a."""
    if attempt.ended_at is None:
        return None
    return max(0.0, attempt.ended_at - attempt.arrived_at)


# --- many jobs ----------------------------------------------------------------------------------


def met_deadline(job: Job, now: float) -> bool | None:
    """Whether the job kept its deadline.

    Returns:
        True: finished in time. False: finished late, failed or interrupted, or still runs past
        its deadline at `now`. None: it has no deadline, its owner cancelled it, or it still can.
    """
    if job.deadline_s is None or job.status is JobStatus.CANCELLED:
        return None
    limit = job.submitted_at + job.deadline_s
    if job.status is JobStatus.RUNNING:
        return False if now > limit else None
    if job.status is not JobStatus.FINISHED or job.finished_at is None:
        return False
    return job.finished_at <= limit


def slo_attainment(jobs: Iterable[Job], now: float) -> float | None:
    """Part of the decided jobs with a deadline that kept it, 0 to 1; None when there is none."""
    decided = [met for job in jobs if (met := met_deadline(job, now)) is not None]
    return sum(decided) / len(decided) if decided else None


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest value with at least a part `q` of all at or below it; None of nothing.

    Raises:
        ValueError: `q` is not in [0, 1].
    """
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile is in [0, 1], found {q}")
    ordered = sorted(values)
    if not ordered:
        return None
    # Ten digits are enough for any sample, and keep 0.9 * 10 from becoming 9.000000000000002.
    return ordered[max(0, math.ceil(round(q * len(ordered), 10)) - 1)]


# --- memory -------------------------------------------------------------------------------------


def reserved_bytes(snapshot: NodeSnapshot) -> int:
    """Device memory that the node has booked (Maestro's reserved HBM), host memory apart."""
    return sum(device.booked_bytes for device in snapshot.devices if device.device != HOST_DEVICE)


def mean_reserved_bytes(snapshots: Sequence[NodeSnapshot]) -> float | None:
    """Time average of `reserved_bytes` over snapshots of one node, in order of `as_of_s`.

    Each figure holds until the next snapshot; None when they span no time.
    """
    if len(snapshots) < 2:
        return None
    span = snapshots[-1].as_of_s - snapshots[0].as_of_s
    if span <= 0:
        return None
    area = sum(
        reserved_bytes(held) * (following.as_of_s - held.as_of_s)
        for held, following in pairwise(snapshots)
    )
    return area / span
