"""``maestroctl jobs`` and ``job show/cancel``: what runs and what ran."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JobArgument, JsonOption, UrlOption
from maestroctl.domain.outcome import JobStatus

app = typer.Typer(help="One job: show it, cancel it.", no_args_is_help=True)


def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    status: Annotated[JobStatus | None, typer.Option(help="Only those.")] = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    from maestroctl.cli import render
    from maestroctl.cli.api import get_once

    query: dict[str, str | int] = {"limit": limit}
    if status is not None:
        query["status"] = status.value
    document = get_once(url, "/api/jobs", **query)
    if as_json:
        terminal.json(document)
    elif document["jobs"]:
        terminal.out.print(render.jobs_table(document["jobs"]))
    elif status is not None:
        terminal.notice(f"No job is {status}.")
    else:
        terminal.notice("No jobs. `maestroctl submit WORKFLOW.toml` runs one.")


@app.command("show")
def show(
    job: JobArgument,
    steps: Annotated[bool, typer.Option("--steps", help="Print what every step said.")] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job: its stages, what each waited for, its output."""
    from maestroctl.cli.api import get_once

    document = get_once(url, f"/api/jobs/{quote(job, safe='')}")
    if as_json:
        terminal.json(document)
    else:
        print_job(document, steps=steps)


@app.command("cancel")
def cancel(job: JobArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Cancel a job: queued stages are dropped, running ones aborted."""
    from maestroctl.cli.api import post_once

    document = post_once(url, f"/api/jobs/{quote(job, safe='')}/cancel")
    if as_json:
        terminal.json(document)
    else:
        terminal.err.print(f"{job}: cancelled")


def print_job(document: dict[str, Any], *, steps: bool) -> None:
    """A job for a person."""
    from rich.text import Text

    from maestroctl.cli import render

    out = terminal.out
    head = Text(f"{document['job_id']}  {document['workflow'] or 'request'}  ", style="bold")
    out.print(head + render.status_text(document["status"]))
    if document["reason"]:
        failed = document["status"] == JobStatus.FAILED
        out.print(Text(document["reason"], style="red" if failed else "dim"))
    if document["stages"]:
        out.print(render.stages_table(document["stages"]))
    for step in document["steps"] if steps else ():
        out.print(Text(render.step_label(step), style="bold"))
        out.print(Text(step["output"]))
    if document["output"] and not steps:
        out.print(Text(document["output"]))
