"""Reads a folder of stage traces: ``stages_<source>.jsonl.zst``, one row per LLM call.

Only the fields a live gateway could know before the call reach the `StageInput`; the labels
(``output_tokens``, ``tool_call``) are kept apart, and what is known at the end of a job only
(``job_success``, ``edits``, times) is not read at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import StageText, count_tokens
from maestroctl.errors import ConfigError
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.trace_files import find_traces, read_trace
from maestroctl.predict.trace_row import check_row

UNKNOWN_MODEL = "unknown"


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
            row = check_row(json.loads(line))
        except ValueError as exc:
            raise ConfigError(f"not a stage row: {exc}", file=str(path), line=number) from exc
        rows_of_job.setdefault(row["job_id"], []).append(row)
    for rows in rows_of_job.values():
        rows.sort(key=itemgetter("stage_index"))
        yield job_from_rows(rows)


def job_from_rows(rows: list[dict[str, Any]]) -> TraceJob:
    """Replay the rows of one job in order, so each stage sees only what ended before it.

    Args:
        rows: as `check_row` left them.
    """
    history = JobHistory()
    stages = []
    for row in rows:
        descriptor, text = stage_from_row(row)
        output, tool_called = row.get("output_tokens"), row.get("tool_call")
        stages.append(TraceStage(build_stage_input(descriptor, text, history), output, tool_called))
        history.add(
            EndedStage(
                role=descriptor.role,
                step=descriptor.step,
                prompt_tokens=descriptor.prompt_tokens.full,
                output_tokens=output,
                tools_available=descriptor.tools_available,
                tool_called=tool_called,
                prompt_tail=text.tail,
            )
        )
    first = rows[0]
    return TraceJob(
        job=first["job_id"],
        task=first["task_id"],
        app=first["app"],
        source=first["source"],
        stages=tuple(stages),
    )


def stage_from_row(row: dict[str, Any]) -> tuple[StageDescriptor, StageText]:
    """Descriptor and text of one trace row; reads no label field.

    The trace's ``phase`` is a declared step, fixed by the workflow before the call. Its
    ``topology`` is not read: no request states one.
    """
    text = StageText(row.get("system_text") or "", row.get("prompt_tail") or "")
    logged = row.get("prompt_tokens")
    held = count_tokens(text.system) + count_tokens(text.tail)
    model = ModelName(row.get("model") or UNKNOWN_MODEL)
    tools = row.get("tools_available") or 0
    descriptor = StageDescriptor(
        stage_id=StageId(f"{row['job_id']}/{row['stage_index']}"),
        job_id=JobId(row["job_id"]),
        candidates=(model,),
        arrival_s=0.0,
        prompt_tokens=PromptTokens.of(text, held if logged is None else logged),
        workflow=row["app"],
        step=row.get("phase") or "",
        role=row.get("role") or "",
        position=row["stage_index"],
        invocation_index=row.get("invocation_index") or 0,
        tools_available=tools,
    )
    return descriptor, text


def fold_of_task(task: str, num_folds: int, *, seed: int = 0) -> int:
    """Stable fold of a task: repeated runs of one task never end on both sides."""
    return _task_number(task, seed) % num_folds


def folds_of_tasks(tasks: Sequence[str], num_folds: int, *, seed: int = 0) -> list[int]:
    """Fold of each task's run, so that every fold is filled for which there is a task.

    Folds are those of `fold_of_task`; where chance leaves one empty that could be filled, the tasks
    are dealt out in the order of their hashes instead.
    """
    stable = {task: fold_of_task(task, num_folds, seed=seed) for task in tasks}
    if len(set(stable.values())) < min(num_folds, len(stable)):
        ranked = sorted(stable, key=lambda task: (_task_number(task, seed), task))
        stable = {task: rank % num_folds for rank, task in enumerate(ranked)}
    return [stable[task] for task in tasks]


def _task_number(task: str, seed: int) -> int:
    text = f"{seed}/{task}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
