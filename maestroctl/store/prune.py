"""Forgetting old history without stopping the world.

A finished job goes with everything that hangs on it: step results, stage attempts, observations,
decisions about it or its stages. Decisions about anything else (engines) go once they are older
than every job that is kept. Unfinished jobs are never touched.
"""

from __future__ import annotations

import sqlalchemy as sa

from maestroctl.domain.outcome import JobStatus
from maestroctl.store.schema import decisions, jobs, observations, stage_attempts, step_results

_FINISHED = jobs.c.status != JobStatus.RUNNING.value


def count_surplus(connection: sa.Connection, history_jobs: int) -> int:
    """How many finished jobs there are beyond `history_jobs`."""
    finished = connection.execute(sa.select(sa.func.count()).where(_FINISHED)).scalar_one()
    return max(0, int(finished) - history_jobs)


def prune_batch(connection: sa.Connection, limit: int) -> int:
    """Delete up to `limit` of the oldest finished jobs with all that hangs on them."""
    oldest = sa.select(jobs.c.job_id).where(_FINISHED).order_by(jobs.c.submitted_at).limit(limit)
    ids = list(connection.execute(oldest).scalars())
    if not ids:
        return 0
    stages = sa.select(stage_attempts.c.stage_id).where(stage_attempts.c.job_id.in_(ids))
    for statement in (
        decisions.delete().where(decisions.c.subject.in_(ids)),
        decisions.delete().where(decisions.c.subject.in_(stages)),
        observations.delete().where(observations.c.stage_id.in_(stages)),
        stage_attempts.delete().where(stage_attempts.c.job_id.in_(ids)),
        step_results.delete().where(step_results.c.job_id.in_(ids)),
        jobs.delete().where(jobs.c.job_id.in_(ids)),
    ):
        connection.execute(statement)
    return len(ids)


def prune_old_decisions(connection: sa.Connection, limit: int) -> int:
    """Delete up to `limit` decisions that are older than every job that is kept.

    Numbers of decisions rise with time, so looking at the lowest ones is enough.
    """
    oldest_kept = connection.execute(sa.select(sa.func.min(jobs.c.submitted_at))).scalar()
    if oldest_kept is None:
        return 0
    lowest = sa.select(decisions.c.id, decisions.c.at).order_by(decisions.c.id).limit(limit)
    old = [row.id for row in connection.execute(lowest) if row.at < oldest_kept]
    if old:
        connection.execute(decisions.delete().where(decisions.c.id.in_(old)))
    return len(old)
