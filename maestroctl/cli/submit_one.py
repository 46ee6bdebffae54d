"""Submits one run and sees it through: wait, follow or leave it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

from maestroctl.cli.api import CoordinatorApi
from maestroctl.cli.board import JobBoard
from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.follow import JobFollower
from maestroctl.cli.submission import Submission
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.units import format_seconds
from maestroctl.errors import MaestroError

_CANCEL_LIMIT_S = 5.0


async def run_one(
    run: Submission, url: str | None, *, follow: bool, detach: bool, as_json: bool
) -> ExitCode:
    """Submit; unless detached, return when it is over.

    Raises:
        MaestroError: it was not taken, or could not be followed to its end.
    """
    async with CoordinatorApi(url) as api:
        job_id = await submit_job(api, run)
        if detach:
            _print_id(job_id, as_json=as_json)
            return ExitCode.OK
        async with cancelling(api, [job_id]):
            job = await (_follow if follow else _wait)(api, job_id, run)
    _print_result(job, as_json=as_json)
    return ExitCode.OK if job["status"] == JobStatus.FINISHED else ExitCode.FAILED


async def submit_job(api: CoordinatorApi, run: Submission) -> str:
    """Hand a run in; its id."""
    answer = await api.post("/api/jobs", run.body())
    return str(answer["job_id"])


@contextlib.asynccontextmanager
async def cancelling(api: CoordinatorApi, job_ids: Iterable[str]) -> AsyncIterator[None]:
    """Cancel the jobs when the work inside is interrupted, and say so.

    Args:
        job_ids: read when it happens, so a caller may add to them and take away.
    """
    try:
        yield
    except asyncio.CancelledError:
        for job_id in list(job_ids):
            terminal.err.print(await _cancel(api, job_id))
        raise


async def _cancel(api: CoordinatorApi, job_id: str) -> str:
    try:
        await asyncio.wait_for(api.post(f"/api/jobs/{job_id}/cancel"), _CANCEL_LIMIT_S)
    except (MaestroError, TimeoutError) as exc:
        return f"Interrupted. {job_id} could not be cancelled: {exc or 'no answer'}"
    return f"Interrupted. {job_id} is cancelled."


async def _wait(api: CoordinatorApi, job_id: str, run: Submission) -> dict[str, Any]:
    with terminal.working(f"{run.workflow.name} {job_id}"):
        return await JobFollower(api, job_id, on_trouble=terminal.notice).wait()


async def _follow(api: CoordinatorApi, job_id: str, run: Submission) -> dict[str, Any]:
    from maestroctl.cli.live_view import draw_board, make_view

    board = JobBoard(time.monotonic, run.workflow)
    title = f"{run.workflow.name} {job_id}"
    terminal.err.print(title, style="bold")
    with make_view(terminal.err, lambda height: draw_board(board, height)) as view:

        def take(event: dict[str, Any]) -> None:
            line = board.apply(event)
            if line is not None:
                view.line(line)

        job = await JobFollower(api, job_id, on_event=take, on_trouble=view.notice).wait()
    _print_stages(job)
    return job


def _print_stages(job: dict[str, Any]) -> None:
    from maestroctl.cli.render import stages_table

    if job["stages"]:
        terminal.err.print(stages_table(job["stages"]))


def _print_id(job_id: str, *, as_json: bool) -> None:
    if as_json:
        terminal.json({"job_id": job_id})
    else:
        terminal.line(job_id)


def _print_result(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal.json(job)
    elif job["output"]:
        terminal.line(job["output"])
    if job["status"] != JobStatus.FINISHED:
        report_failure(job)
    elif terminal.err.is_terminal:
        terminal.notice(f"{job['job_id']} finished in {format_seconds(took_s(job))}")


def report_failure(job: dict[str, Any]) -> None:
    """One paragraph: which job, how it ended, why, where to look."""
    reason = f": {job['reason']}" if job["reason"] else ""
    terminal.error(
        MaestroError(
            f"{job['job_id']} ({job['workflow']}) {_ended(job['status'])}{reason}",
            hint=f"maestroctl job show {job['job_id']}",
        )
    )


def took_s(job: dict[str, Any]) -> float:
    """From submission to end."""
    return float((job["finished_at"] or job["submitted_at"]) - job["submitted_at"])


def _ended(status: str) -> str:
    return status if status == JobStatus.FAILED else f"was {status}"
