"""Fits the predictors on what this fleet itself has run, as its state database keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maestroctl.predict.own_history import OwnHistory
    from maestroctl.predict.train import TrainConfig

MAX_OBSERVATIONS = 20_000


def refit_own(state_url: str, out: Path, config: TrainConfig) -> dict[str, Any]:
    """Fit on own history and write the artifact, but only if it is better on the newest jobs.

    Returns:
        ``better``, ``jobs`` and ``stages`` that were used, ``unreadable`` rows, and ``path``,
        ``bytes`` and ``digest`` of what was written.

    Raises:
        StoreError: the state cannot be read.
    """
    from maestroctl.predict.artifact import save_artifact
    from maestroctl.predict.refit import refit_from_history
    from maestroctl.predict.shipped import load_shipped

    history = read_own_history(state_url)
    result = refit_from_history(history, load_shipped().builder.embedder.encoder, config)
    report: dict[str, Any] = {
        "better": result.model is not None,
        "jobs": result.jobs,
        "stages": result.stages,
        "unreadable": history.unreadable,
    }
    if result.model is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        digest = save_artifact(result.model, out)
        report |= {"path": str(out), "bytes": out.stat().st_size, "digest": digest}
    return report


def read_own_history(state_url: str) -> OwnHistory:
    """The newest jobs that are over, read beside whoever owns the state.

    Raises:
        StoreError: the state cannot be read.
    """
    from maestroctl.predict.own_history import own_history
    from maestroctl.store.database import Store

    with Store.open(state_url, exclusive=False) as store:
        rows = store.observations(MAX_OBSERVATIONS)
        jobs = dict.fromkeys(name for row in rows if (name := _job_of(row.features_json)))
        if len(rows) == MAX_OBSERVATIONS:
            # The limit may have cut the job of the oldest row in two.
            jobs.pop(_job_of(rows[-1].features_json), None)
        found = (store.job(name) for name in jobs)
        ended = [job.job_id for job in found if job is not None and job.status.is_final]
        attempts = (attempt for name in ended for attempt in store.attempts(name))
        arrived_at = {attempt.stage_id: attempt.arrived_at for attempt in attempts}
    return own_history(rows, arrived_at, ended)


def _job_of(features_json: str) -> str:
    try:
        return str(json.loads(features_json)["job_id"])
    except (ValueError, KeyError, TypeError):
        return ""
