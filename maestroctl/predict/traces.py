"""Reads a folder of stage traces: ``stages_<source>.jsonl.zst``, one row per LLM call.

Only the fields a live gateway could know before the call reach the `StageInput`; the labels
(``output_tokens``, ``tool_call``) are kept apart, and what is known at the end of a job only
(``job_success``, ``edits``, times) is not read at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor, StageText
from maestroctl.errors import ConfigError
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.trace_files import find_traces, read_trace

UNKNOWN_MODEL = "unknown"
_CHARS_PER_TOKEN = 4
_REQUIRED = ("source", "app", "job_id", "task_id", "stage_index")


@dataclass(frozen=True, slots=True)
class TraceStage:
    """One call of a trace: what was known before, and what came out.

    Attributes:
        output_tokens: label; None = the log does not hold it.
        tool_called: label; None = not known.
    """

    seen: StageInput
    output_tokens: int | None
    tool_called: bool | None


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One run of a workflow.

    Attributes:
        task: what folds are split by.
        is_complete: it ran to its end; of others nobody knows what was still to come.
    """

    job: str
    task: str
    app: str
    source: str
    stages: tuple[TraceStage, ...]
    is_complete: bool = True


def load_trace_jobs(folder: Path, *, without: Iterable[str] = ()) -> list[TraceJob]:
    """Every job of a folder, in file order.

    Args:
        folder: see `trace_files.find_traces`.
        without: names of sources to leave out, for instance ``mast_chatdev``.

    Raises:
        ConfigError: no trace file there, or a row that cannot be read.
    """
    left_out = set(without)
    jobs: list[TraceJob] = []
    for path in find_traces(folder):
        jobs.extend(job for job in _read_jobs(path) if job.source not in left_out)
    return jobs


def _read_jobs(path: Path) -> Iterator[TraceJob]:
    rows_of_job: dict[str, list[dict[str, Any]]] = {}
    for number, line in read_trace(path):
        try:
            row = json.loads(line)
            if missing := [name for name in _REQUIRED if row.get(name) is None]:
                raise ConfigError(
                    f"not a stage row: no {', '.join(missing)}", file=str(path), line=number
                )
            rows_of_job.setdefault(row["job_id"], []).append(row)
        except (ValueError, AttributeError, TypeError) as exc:
            raise ConfigError(f"not a stage row: {exc!r}", file=str(path), line=number) from exc
    for job, rows in rows_of_job.items():
        try:
            rows.sort(key=lambda row: int(row["stage_index"]))
            yield job_from_rows(rows)
        except (ValueError, TypeError, AttributeError, OverflowError) as exc:
            raise ConfigError(f"job {job!r} cannot be read: {exc}", file=str(path)) from exc


def job_from_rows(rows: list[dict[str, Any]]) -> TraceJob:
    """Replay the rows of one job in order, so each stage sees only what ended before it."""
    history = JobHistory()
    stages = []
    for row in rows:
        descriptor, text = stage_from_row(row)
        output_tokens, tool_called = row.get("output_tokens"), row.get("tool_call")
        output = None if output_tokens is None else _count(output_tokens)
        stages.append(TraceStage(build_stage_input(descriptor, text, history), output, tool_called))
        history.add(
            EndedStage(
                role=descriptor.role,
                step=descriptor.step,
                prompt_tokens=descriptor.prompt_tokens.full,
                output_tokens=output,
                tool_called=tool_called if descriptor.tools_available else None,
                prompt_tail=text.last_user,
            )
        )
    first = rows[0]
    return TraceJob(
        job=first["job_id"],
        task=str(first["task_id"]),
        app=first["app"],
        source=first["source"],
        stages=tuple(stages),
    )


def stage_from_row(row: dict[str, Any]) -> tuple[StageDescriptor, StageText]:
    """Descriptor and text of one trace row; reads no label field.

    The trace's ``phase`` is a declared step, its ``topology`` says how the agent is made to
    reason, and both are fixed by the workflow before the call.
    """
    system, tail = row.get("system_text") or "", row.get("prompt_tail") or ""
    system_tokens, user_tokens = _estimate_tokens(system), _estimate_tokens(tail)
    logged = row.get("prompt_tokens")
    full = system_tokens + user_tokens if logged is None else _count(logged)
    model = ModelName(row.get("model") or UNKNOWN_MODEL)
    tools = int(row.get("tools_available") or 0)
    descriptor = StageDescriptor(
        stage_id=StageId(f"{row['job_id']}/{row['stage_index']}"),
        job_id=JobId(row["job_id"]),
        candidates=(model,),
        arrival_s=0.0,
        prompt_tokens=PromptTokens(system=system_tokens, user=user_tokens, full=full),
        workflow=row["app"],
        step=row.get("phase") or "",
        role=row.get("role") or "",
        position=int(row["stage_index"]),
        invocation_index=int(row.get("invocation_index") or 0),
        tools_available=tools,
        reasoning=row.get("topology") or "",
    )
    return descriptor, StageText(system=system, last_user=tail)


def _count(value: Any) -> int:
    """A logged number of tokens.

    Raises:
        ValueError, TypeError, OverflowError: it is none.
    """
    number = int(value)
    if number < 0:
        raise ValueError(f"{value} tokens")
    return number


def _estimate_tokens(text: str) -> int:
    return -(-len(text) // _CHARS_PER_TOKEN)


def fold_of_task(task: str, num_folds: int, *, seed: int = 0) -> int:
    """Stable fold of a task: repeated runs of one task never end on both sides."""
    digest = hashlib.blake2b(f"{seed}/{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % num_folds
