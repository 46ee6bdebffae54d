"""Fits the predictors on what this fleet itself has run, as its state database keeps it.

A function for `maestroctl train --from-history`, and a program for `background_refit`:

``python -m maestroctl.live.coordinator.own_refit < job``

where the job is one line of JSON, ``{"state": URL, "out": FILE}``. The report is the last line of
its output. It runs at a low priority, and ends when its input closes, which is when the
coordinator that started it is gone; the artifact is written beside its place and moved there, so
it may end at any moment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maestroctl.domain.outcome import JobStatus
from maestroctl.errors import MaestroError
from maestroctl.live.coordinator.prediction_desk import IDLE_S
from maestroctl.store.reader import StateReader
from maestroctl.store.rows import JobRow

if TYPE_CHECKING:
    from maestroctl.predict.own_history import OwnHistory
    from maestroctl.predict.train import TrainConfig

MAX_OBSERVATIONS = 20_000
_NICENESS = 10
"""A tenth of a core beside one busy process. At 19 a fit beside CPU engines would hardly end."""


def refit_own(state_url: str, out: Path, config: TrainConfig | None = None) -> dict[str, Any]:
    """Fit on own history and write the artifact, but only if it is better on the newest jobs.

    Returns:
        ``better``, ``jobs`` and ``stages`` that were used, ``unreadable`` rows, the errors
        ``mae_told`` and ``mae_refitted`` over ``judged`` stages of the newest jobs (None = too few
        stages), and ``path``, ``bytes`` and ``digest`` of what was written.

    Raises:
        StoreError: the state cannot be read.
    """
    from maestroctl.predict.artifact import save_artifact
    from maestroctl.predict.refit import refit_from_history
    from maestroctl.predict.shipped import load_shipped
    from maestroctl.predict.train import dated

    history = read_own_history(state_url)
    result = refit_from_history(history, load_shipped().builder.embedder.encoder, config)
    compared = result.compared
    report: dict[str, Any] = {
        "better": result.model is not None,
        "jobs": result.jobs,
        "stages": result.stages,
        "unreadable": history.unreadable,
        "judged": compared.stages if compared else 0,
        "mae_told": compared.told if compared else None,
        "mae_refitted": compared.refitted if compared else None,
    }
    if result.model is not None:
        digest = save_artifact(dated(result.model), out)
        report |= {"path": str(out), "bytes": out.stat().st_size, "digest": digest}
    return report


def read_own_history(state_url: str) -> OwnHistory:
    """The newest jobs that are over, read beside whoever owns the state.

    Raises:
        StoreError: the state cannot be read.
    """
    from maestroctl.predict.own_history import own_history

    with StateReader.open(state_url) as store:
        rows = store.observations(MAX_OBSERVATIONS)
        jobs = dict.fromkeys(name for row in rows if (name := _job_of(row.features_json)))
        if len(rows) == MAX_OBSERVATIONS:
            # The limit may have cut the job of the oldest row in two.
            jobs.pop(_job_of(rows[-1].features_json), None)
        found = (store.job(name) for name in jobs)
        idle_since = time.time() - IDLE_S
        ended = {job.job_id: job for job in found if job is not None and _is_over(job, idle_since)}
        attempts = (attempt for name in ended for attempt in store.attempts(name))
        arrived_at = {attempt.stage_id: attempt.arrived_at for attempt in attempts}
    cut = {name for name, job in ended.items() if job.status is not JobStatus.FINISHED}
    return own_history(rows, arrived_at, ended, cut)


def _is_over(job: JobRow, idle_since: float) -> bool:
    """A job of outside callers is final after each of its stages: over is what has been idle."""
    if not job.status.is_final:
        return False
    return not job.external or (job.finished_at or 0.0) <= idle_since


def _job_of(features_json: str) -> str:
    try:
        return str(json.loads(features_json)["job_id"])
    except (ValueError, KeyError, TypeError):
        return ""


def _end_when_orphaned() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> int:
    """Entry point of the background refit."""
    os.nice(_NICENESS)
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_when_orphaned, daemon=True).start()
    try:
        report = refit_own(job["state"], Path(job["out"]))
    except MaestroError as exc:
        print(exc, file=sys.stderr)
        return 1
    print(json.dumps(report), flush=True)
    # Not by the interpreter's end: it would wait for the lock on the input that the watch holds.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
