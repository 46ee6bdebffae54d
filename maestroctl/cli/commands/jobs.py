"""``maestroctl jobs`` and ``job show/cancel``: what runs and what ran."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from maestroctl.cli import render
from maestroctl.cli.api import CoordinatorApi, run_async
from maestroctl.cli.commands.ps import JsonOption, UrlOption
from maestroctl.cli.context import terminal
from maestroctl.domain.outcome import JobStatus

app = typer.Typer(help="One job: show it, cancel it.", no_args_is_help=True)

JobArgument = Annotated[str, typer.Argument(help="Id of a job, as `submit` and `jobs` print it.")]


def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    status: Annotated[JobStatus | None, typer.Option(help="Only those.")] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""

    async def fetch() -> Any:
        async with CoordinatorApi(url) as api:
            query: dict[str, str | int] = {"limit": limit}
            if status is not None:
                query["status"] = status.value
            return await api.get("/api/jobs", **query)

    document = run_async(fetch())
    if as_json:
        terminal.json(document)
    elif document["jobs"]:
        terminal.out.print(render.jobs_table(document["jobs"]))
    else:
        terminal.notice("No jobs yet. `maestroctl submit WORKFLOW.toml` runs one.")


@app.command("show")
def show(job: JobArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show one job: its stages, what each waited for, its output."""

    async def fetch() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.get(f"/api/jobs/{job}")

    document = run_async(fetch())
    if as_json:
        terminal.json(document)
    else:
        print_job(document)


@app.command("cancel")
def cancel(job: JobArgument, url: UrlOption = None) -> None:
    """Cancel a job: queued stages are dropped, running ones aborted."""

    async def call() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.post(f"/api/jobs/{job}/cancel")

    run_async(call())
    terminal.err.print(f"{job}: cancelled")


def print_job(document: dict[str, Any]) -> None:
    """A job for a person."""
    out = terminal.out
    line = render.status_text(document["status"])
    out.print(document["job_id"], document["workflow"] or "request", line)
    if document["reason"]:
        out.print(document["reason"], style="red" if document["status"] == "failed" else "dim")
    if document["stages"]:
        out.print(render.stages_table(document["stages"]))
    if document["output"]:
        out.print(document["output"], markup=False)
