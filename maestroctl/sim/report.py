"""What a run comes to: the figures of `telemetry.metrics` over its rows, warm-up left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.stage import ServiceClass
from maestroctl.sim.jobs import JobPlan, JobRow, StageRow
from maestroctl.sim.world import SimResult
from maestroctl.telemetry import metrics


def counted(result: SimResult, plans: Sequence[JobPlan], warmup: int) -> list[JobRow]:
    """Rows of the jobs that arrived after the warm-up."""
    warm = {plan.job_id for plan in plans[:warmup]}
    return [job for job in result.jobs if job.job_id not in warm]


def summarize(result: SimResult, plans: Sequence[JobPlan], warmup: int = 0) -> dict[str, Any]:
    """Figures of one run, ready for JSON; seconds, parts of 1 and counts."""
    jobs = counted(result, plans, warmup)
    known = {job.job_id for job in jobs}
    stages = [row for row in result.stages if row.job_id in known]
    classes = {
        c.value: _figures(
            [job for job in jobs if job.service_class is c],
            [row for row in stages if row.service_class is c],
            result.end_s,
        )
        for c in ServiceClass
    }
    return {
        "all": _figures(jobs, stages, result.end_s),
        **classes,
        "unfinished": _unfinished(jobs),
        "simulated_s": result.end_s,
        "half_output_s": _half_output_s(stages),
        "events": result.num_events,
        "calls_per_job": len(stages) / len(jobs) if jobs else None,
        "recompute_preemptions": result.num_preempted,
        "transitions": dict(sorted(result.transitions.items())),
        "busy": {engine: seconds / result.end_s for engine, seconds in result.busy_s.items()}
        if result.end_s
        else {},
    }


def _unfinished(jobs: Sequence[JobRow]) -> dict[str, int]:
    """Why jobs did not finish, and how many each; the most frequent reason first."""
    ended = [job for job in jobs if job.status is not JobStatus.FINISHED]
    return dict(Counter(job.reason or str(job.status) for job in ended).most_common())


def queue_s_per_job(stages: Iterable[StageRow]) -> dict[str, float]:
    """Seconds that each job's stages waited before the engine took them up, summed."""
    total: dict[str, float] = {}
    for row in stages:
        wait = queue_delay_s(row)
        if wait is not None:
            total[row.job_id] = total.get(row.job_id, 0.0) + wait
    return total


def queue_delay_s(row: StageRow) -> float | None:
    """Seconds in the coordinator's queue."""
    return metrics.queue_wait_s(row)


def _figures(jobs: Sequence[JobRow], stages: Sequence[StageRow], end_s: float) -> dict[str, Any]:
    latencies = [
        job.finished_at - job.submitted_at
        for job in jobs
        if job.status is JobStatus.FINISHED and job.finished_at is not None
    ]
    waits = [wait for row in stages if (wait := queue_delay_s(row)) is not None]
    answered = [row for row in stages if metrics.ttft_s(row) is not None]
    ttfts = [value for row in answered if (value := metrics.ttft_s(row)) is not None]
    tpots = [value for row in stages if (value := metrics.tpot_s(row)) is not None]
    return {
        "jobs": len(jobs),
        "finished": len(latencies),
        "stages": len(stages),
        "slo_attainment": metrics.slo_attainment(jobs, end_s),
        "latency_s": _spread(latencies),
        "queue_s": _spread(waits),
        "queue_s_per_job": _mean(list(queue_s_per_job(stages).values())),
        "ttft_s": _spread(ttfts),
        "prompt_tokens": _mean([row.prompt_tokens or 0 for row in answered]),
        "tpot_s": _spread(tpots),
    }


def _half_output_s(stages: Sequence[StageRow]) -> float | None:
    """When half of all output tokens were done, counted at the end of their stages."""
    ended = sorted((row.ended_at, row.output_tokens or 0) for row in stages if row.ended_at)
    left = sum(tokens for _, tokens in ended) / 2
    for ended_at, tokens in ended:
        left -= tokens
        if left <= 0:
            return ended_at
    return None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    return {
        "mean": _mean(values),
        "p50": metrics.quantile(values, 0.5),
        "p95": metrics.quantile(values, 0.95),
        "p99": metrics.quantile(values, 0.99),
    }
