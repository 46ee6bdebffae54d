"""Submits many runs of one workflow: so many open at once, results in the order of the inputs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from maestroctl.cli.api import CoordinatorApi
from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.follow import JobFollower
from maestroctl.cli.submission import Submission
from maestroctl.cli.submit_one import cancelling, submit_job, took_s
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.units import format_seconds
from maestroctl.errors import InvalidRequest, RequestError

Result = dict[str, Any]

_FULL_WAIT_S = 1.0
"""The coordinator is full: wait this long and hand the run in again."""


async def run_batch(
    runs: list[Submission], url: str | None, *, parallel: int, detach: bool, as_json: bool
) -> ExitCode:
    """Submit every run; unless detached, print one result per run, in order.

    Raises:
        MaestroError: the coordinator cannot be reached, or does not come back.
    """
    async with CoordinatorApi(url) as api:
        batch = _Batch(api, runs, parallel)
        if detach:
            await batch.submit_only(as_json=as_json)
            return ExitCode.OK
        async with cancelling(api, batch.open_jobs):
            results = await batch.run(print_lines=not as_json)
    summary = summarise(results)
    if as_json:
        document = {"workflow": runs[0].workflow.name, "results": results, "summary": summary}
        terminal.json(document)
    terminal.err.print(_summary_text(summary))
    return ExitCode.OK if summary["finished"] == len(results) else ExitCode.FAILED


@dataclass(slots=True)
class _Batch:
    """Runs of one call. Results are kept until those before them are there.

    Attributes:
        open_jobs: submitted and not over.
    """

    api: CoordinatorApi
    runs: list[Submission]
    parallel: int
    open_jobs: dict[str, None] = field(default_factory=dict)
    _results: dict[int, Result] = field(default_factory=dict)
    _num_printed: int = 0
    _told: set[str] = field(default_factory=set)

    async def submit_only(self, *, as_json: bool) -> None:
        job_ids = []
        for run in self.runs:
            job_ids.append(await self._submit(run))
            if not as_json:
                terminal.line(job_ids[-1])
        if as_json:
            terminal.json({"job_ids": job_ids})

    async def run(self, *, print_lines: bool) -> list[Result]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        bar = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=terminal.err,
            transient=True,
            disable=not terminal.err.is_terminal,
            # Result lines go to standard output while the bar is drawn on standard error.
            redirect_stdout=False,
        )
        gate = asyncio.Semaphore(self.parallel)
        with bar:
            task_id = bar.add_task(self.runs[0].workflow.name, total=len(self.runs))

            async def one(index: int) -> None:
                async with gate:
                    self._results[index] = await self._run_one(index)
                bar.advance(task_id)
                if print_lines:
                    self._print_ready()

            try:
                async with asyncio.TaskGroup() as group:
                    for index in range(len(self.runs)):
                        group.create_task(one(index))
            except BaseExceptionGroup as failures:
                # Every run fails of the same: the coordinator is gone. One paragraph says it.
                raise failures.exceptions[0] from None
        return [self._results[index] for index in range(len(self.runs))]

    async def _run_one(self, index: int) -> Result:
        run = self.runs[index]
        try:
            job_id = await self._submit(run)
        except InvalidRequest as exc:
            return _result(index, run, {"status": "failed", "reason": str(exc)})
        self.open_jobs[job_id] = None
        job = await JobFollower(self.api, job_id, on_trouble=self._note_trouble).wait()
        del self.open_jobs[job_id]
        return _result(index, run, job)

    async def _submit(self, run: Submission) -> str:
        while True:
            try:
                return await submit_job(self.api, run)
            except RequestError as exc:
                if exc.http_status != 429:
                    raise
                await asyncio.sleep(_FULL_WAIT_S)

    def _print_ready(self) -> None:
        while self._num_printed in self._results:
            result = self._results[self._num_printed]
            terminal.line(json.dumps(result, ensure_ascii=False))
            self._num_printed += 1

    def _note_trouble(self, text: str) -> None:
        # Every open job notices the same break; once is enough.
        if text not in self._told:
            self._told.add(text)
            terminal.notice(text)


def _result(index: int, run: Submission, job: dict[str, Any]) -> Result:
    ended = job.get("finished_at") is not None
    return {
        "index": index,
        "id": run.label,
        "job_id": job.get("job_id"),
        "status": job["status"],
        "output": job.get("output"),
        "reason": job.get("reason") or None,
        "seconds": round(took_s(job), 3) if ended else None,
    }


def summarise(results: list[Result]) -> dict[str, Any]:
    """Counts by status, and times of the runs that finished."""
    counts = Counter(result["status"] for result in results)
    times = sorted(r["seconds"] for r in results if r["status"] == JobStatus.FINISHED)
    return {
        "runs": len(results),
        **{status.value: counts.get(status.value, 0) for status in JobStatus if status.is_final},
        "median_s": times[len(times) // 2] if times else None,
        "longest_s": times[-1] if times else None,
    }


def _summary_text(summary: dict[str, Any]) -> str:
    text = f"{summary['finished']} of {summary['runs']} runs finished"
    others = [
        f"{summary[status.value]} {status.value}"
        for status in JobStatus
        if status.is_final and status is not JobStatus.FINISHED and summary[status.value]
    ]
    if others:
        text += ", " + ", ".join(others)
    if summary["median_s"] is not None:
        text += f"; median {format_seconds(summary['median_s'])}"
        text += f", longest {format_seconds(summary['longest_s'])}"
    return text + "."
