"""Recorded jobs and arrival times from a data folder; only the numbers, no text.

``stages/stages_<source>.jsonl.zst`` has one row per LLM call, ``arrivals/*.csv.gz`` one row per
request with its time in the column ``t_s``.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from maestroctl.errors import ConfigError
from maestroctl.predict.trace_files import find_traces, read_trace


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call as it was recorded."""

    role: str
    prompt_tokens: int
    output_tokens: int
    tools_available: int
    tool_called: bool


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One recorded run of a workflow, `app`."""

    job: str
    app: str
    source: str
    calls: tuple[TraceCall, ...]


class _Row(msgspec.Struct):
    job_id: str
    app: str
    source: str
    stage_index: int
    role: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tools_available: int | None = None
    tool_call: bool | None = None


def load_jobs(folder: Path, *, without: Iterable[str] = ()) -> list[TraceJob]:
    """Every whole job of a data folder, in the order of its files.

    A job with a call of unknown output length is left out. A prompt of unknown length is taken to
    be the one before it and its answer.

    Args:
        folder: the data folder, or its ``stages``.
        without: sources to leave out.

    Raises:
        ConfigError: no trace files, or one that cannot be read.
    """
    left_out = set(without)
    jobs: list[TraceJob] = []
    for path in find_traces(folder):
        source = path.name.removeprefix("stages_").split(".")[0]
        if source not in left_out:
            jobs.extend(_read_jobs(path))
    return jobs


def _read_jobs(path: Path) -> Iterator[TraceJob]:
    rows: dict[str, list[_Row]] = {}
    decode = msgspec.json.Decoder(_Row).decode
    for number, line in read_trace(path):
        try:
            row = decode(line)
        except msgspec.MsgspecError as exc:
            raise ConfigError(f"not a stage row: {exc}", file=str(path), line=number) from exc
        rows.setdefault(row.job_id, []).append(row)
    for job, calls in rows.items():
        if all(call.output_tokens is not None for call in calls):
            calls.sort(key=lambda row: row.stage_index)
            yield TraceJob(job, calls[0].app, calls[0].source, tuple(_make_calls(calls)))


def _make_calls(rows: list[_Row]) -> Iterator[TraceCall]:
    seen = 0
    for row in rows:
        output = row.output_tokens or 0
        prompt = seen if row.prompt_tokens is None else row.prompt_tokens
        seen = prompt + output
        yield TraceCall(
            row.role or "agent",
            max(1, prompt),
            max(1, output),
            row.tools_available or 0,
            bool(row.tool_call),
        )


def load_arrivals(folder: Path, name: str) -> list[float]:
    """Rising times in seconds from 0 of a recorded trace, for instance ``azure2023_conv``.

    Raises:
        ConfigError: no such trace, or one without times.
    """
    path = folder / "arrivals" / f"{name}.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            times = [float(row["t_s"]) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError) as exc:
        raise ConfigError(f"cannot read the arrivals: {exc!r}", file=str(path)) from exc
    times.sort()
    if len(times) < 2 or times[-1] <= times[0]:
        raise ConfigError("an arrival trace needs two different times", file=str(path))
    return [at_s - times[0] for at_s in times]
