"""What the command line and dashboards see, as plain JSON values. Reading wakes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot
from maestroctl.store.rows import DecisionRow, JobRow, StageAttemptRow, StepResultRow


def job_view(row: JobRow) -> dict[str, Any]:
    """One line of `jobs`."""
    return {
        "job_id": row.job_id,
        "workflow": row.workflow,
        "class": row.service_class.value,
        "status": row.status.value,
        "reason": row.reason,
        "submitted_at": row.submitted_at,
        "finished_at": row.finished_at,
        "deadline_s": row.deadline_s,
        "external": row.external,
    }


def job_detail(
    row: JobRow, steps: Iterable[StepResultRow], attempts: Iterable[StageAttemptRow]
) -> dict[str, Any]:
    """`job show`: the job, its finished steps and every attempt of its stages."""
    return {
        **job_view(row),
        "input": json.loads(row.input_json),
        "output": row.output,
        "steps": [
            {
                "step": step.step,
                "visit": step.visit,
                "item": step.item,
                "num_items": step.num_items,
                "output": step.output,
                "repeat": step.repeat,
                "finished_at": step.finished_at,
            }
            for step in steps
        ],
        "stages": [attempt_view(attempt) for attempt in attempts],
    }


def attempt_view(row: StageAttemptRow) -> dict[str, Any]:
    """One attempt with the durations people ask for, in seconds."""
    wait_s = _gap(row.arrived_at, row.dispatched_at)
    return {
        "stage_id": row.stage_id,
        "attempt": row.attempt,
        "step": row.step,
        "role": row.role,
        "model": row.model,
        "node": row.node,
        "outcome": row.outcome.value if row.outcome else None,
        "reason": row.reason,
        "arrived_at": row.arrived_at,
        "wait_s": wait_s,
        "activation": row.activation,
        "activation_s": row.activation_s,
        "ttft_s": _gap(row.arrived_at, row.first_byte_at),
        "total_s": _gap(row.arrived_at, row.ended_at),
        "prompt_tokens": row.prompt_tokens,
        "output_tokens": row.output_tokens,
        "cached_tokens": row.cached_tokens,
    }


def decision_view(row: DecisionRow) -> dict[str, Any]:
    """One decision record."""
    return {
        "at": row.at,
        "kind": row.kind,
        "subject": row.subject,
        "choice": row.choice,
        "reason": row.reason,
        **json.loads(row.detail_json),
    }


def node_view(snapshot: NodeSnapshot, now_s: float) -> dict[str, Any]:
    """A node with its devices and engines."""
    return {
        "node": snapshot.node,
        "cluster": snapshot.cluster,
        "age_s": max(0.0, now_s - snapshot.as_of_s),
        "rtt_s": snapshot.rtt_s,
        "draining": snapshot.draining,
        "devices": [msgspec.to_builtins(device) for device in snapshot.devices],
        "engines": [engine_view(engine, now_s) for engine in snapshot.engines],
        "never_fits": dict(snapshot.never_fits),
    }


def engine_view(engine: EngineSnapshot, now_s: float) -> dict[str, Any]:
    """An engine; idle time as an age, since clocks of cores mean nothing to people."""
    view: dict[str, Any] = msgspec.to_builtins(engine)
    idle_since_s = view.pop("idle_since_s")
    view["idle_s"] = None if idle_since_s is None else max(0.0, now_s - idle_since_s)
    return view


def not_ready(
    fleet: FleetSpec, nodes: Iterable[NodeSnapshot], problems: Iterable[str]
) -> str | None:
    """Why nothing can be served now; None when at least one model can, or could be woken."""
    snapshots = list(nodes)
    if not snapshots:
        return "no node is connected: " + ("; ".join(problems) or "none has answered yet")
    reasons: list[str] = []
    for snapshot in snapshots:
        unfit = dict(snapshot.never_fits)
        failed = {
            engine.model: engine.failure or "it failed"
            for engine in snapshot.engines
            if engine.status is EngineStatus.FAILED
        }
        for profile in snapshot.profiles:
            if profile.model in fleet.models and profile.model not in {**unfit, **failed}:
                return None
        reasons += [f"{model}: {reason}" for model, reason in {**unfit, **failed}.items()]
    return "no model can be served: " + ("; ".join(reasons) or "no node knows a model")


def _gap(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(end - start, 6)
