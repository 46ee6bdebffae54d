"""Everything that was decided about a job, gathered from the store: what `explain` prints.

A stage's own records have its id as their subject. What engines did for it (wake, start, room made)
is recorded under the engines, so records about engines of its node between its dispatch and its
first byte are added: of its own, and of neighbours that gave way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from maestroctl.live.coordinator.views import attempt_view, decision_view, job_view
from maestroctl.store.reader import StateReader
from maestroctl.store.rows import ObservationRow, StageAttemptRow

_MAX_RECORDS = 1000
_MAX_NEAR = 3
_RECENT_JOBS = 5000
"""Among which ids that were mistyped are looked for."""


def explain_job(
    store: StateReader,
    job_id: str,
    stage: str | None = None,
    running: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The job with its stages, oldest first, each with its decisions.

    Args:
        job_id: of a job, or the id of a stage for its job and that stage alone.
        stage: id or step name; None = all stages.
        running: stages that are not over (`StageLedger.running`), which have no row yet.

    Returns:
        ``job`` (None when it is unknown), ``stages``, ``decisions`` about the job itself, and
        ``near``: ids or steps that were perhaps meant when nothing was found.
    """
    row = store.job(job_id)
    if row is None:
        owner = store.job_of_stage(job_id) or _job_of_running(running, job_id)
        row = store.job(owner) if owner is not None else None
        if row is None:
            known = [job.job_id for job in store.jobs(_RECENT_JOBS)]
            near = difflib.get_close_matches(job_id, known, _MAX_NEAR)
            return {"job": None, "stages": [], "decisions": [], "near": near}
        stage = job_id
    stages = _finished(store, row.job_id)
    known_ids = {one["stage_id"] for one in stages}
    stages += [
        _still_running(store, one)
        for one in running
        if one["job_id"] == row.job_id and one["stage_id"] not in known_ids
    ]
    wanted = [one for one in stages if stage is None or stage in (one["stage_id"], one["step"])]
    names = {str(one[key]) for one in stages for key in ("step", "stage_id") if one[key]}
    near = [] if wanted or stage is None else difflib.get_close_matches(stage, names, _MAX_NEAR)
    own = store.decisions(row.job_id, _MAX_RECORDS)
    return {
        "job": job_view(row),
        "stages": wanted,
        "decisions": [decision_view(record) for record in own],
        "near": near,
    }


def _job_of_running(running: Iterable[Mapping[str, Any]], stage_id: str) -> str | None:
    return next((str(one["job_id"]) for one in running if one["stage_id"] == stage_id), None)


def _finished(store: StateReader, job_id: str) -> list[dict[str, Any]]:
    by_stage: dict[str, list[StageAttemptRow]] = {}
    for row in store.attempts(job_id):
        by_stage.setdefault(row.stage_id, []).append(row)
    observed = {row.stage_id: row for row in store.job_observations(job_id)}
    return [
        _one_stage(store, attempts, observed.get(stage_id))
        for stage_id, attempts in by_stage.items()
    ]


def _one_stage(
    store: StateReader, attempts: list[StageAttemptRow], observation: ObservationRow | None
) -> dict[str, Any]:
    last = attempts[-1]
    return {
        **attempt_view(last),
        "state": "over",
        "num_attempts": len(attempts),
        "times": _times(last),
        "prediction": None if observation is None else _prediction(observation),
        "decisions": [decision_view(r) for r in store.decisions(last.stage_id, _MAX_RECORDS)],
        "engine_decisions": _engine_decisions(store, last),
    }


def _still_running(store: StateReader, stage: Mapping[str, Any]) -> dict[str, Any]:
    decisions = store.decisions(str(stage["stage_id"]), _MAX_RECORDS)
    return {
        **stage,
        "outcome": None,
        "reason": "",
        "num_attempts": 1,
        "times": {},
        "prediction": None,
        "decisions": [decision_view(record) for record in decisions],
        "engine_decisions": [],
    }


def _times(row: StageAttemptRow) -> dict[str, float | None]:
    """Where the seconds of the last attempt went; None = it was not seen."""
    first = row.first_byte_at if row.streamed else None
    prefill_s = _gap(row.dispatched_at, first)
    if prefill_s is not None:
        prefill_s = max(0.0, prefill_s - row.activation_s)
    answer_s = _gap(row.dispatched_at, row.ended_at)
    return {
        "queue_s": _gap(row.arrived_at, row.dispatched_at),
        "wake_s": row.activation_s if row.activation else 0.0,
        "prefill_s": prefill_s,
        "decode_s": _gap(first, row.ended_at),
        "answer_s": None if answer_s is None else max(0.0, answer_s - row.activation_s),
    }


def _prediction(row: ObservationRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "output_q50": row.predicted_q50,
        "output_q90": row.predicted_q90,
        "p_tool": row.predicted_p_tool,
        "output_tokens": row.output_tokens,
        "tool_called": row.tool_called,
        "censored": row.censored,
    }


def _engine_decisions(store: StateReader, row: StageAttemptRow) -> list[dict[str, Any]]:
    """What engines of its node were made to do while the stage waited for its own."""
    if not row.node or row.dispatched_at is None or not row.activation:
        return []
    until = row.first_byte_at or row.ended_at or row.dispatched_at
    records = store.engine_decisions(row.node, row.dispatched_at, until)
    return [decision_view(record) for record in records]


def _gap(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start), 6)
