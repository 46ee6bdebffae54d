"""``maestroctl submit``: run a declared workflow, once or for every line of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.runtime import JsonOption, UrlOption, run_async
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import ConfigError


def submit(
    workflow: Annotated[Path, typer.Argument(help="Workflow file.")],
    input_text: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="TEXT", help="Input: text, @FILE, or - for stdin."),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.jsonl", help="Run once per line; one result line each, in order."
        ),
    ] = None,
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Set a variable of the workflow; repeatable."),
    ] = None,
    service_class: Annotated[
        ServiceClass | None, typer.Option("--class", help="In place of the file's.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help='From now, for instance "90s".')
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show every step while it runs.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the job's id and do not wait.")
    ] = False,
    parallel: Annotated[
        int, typer.Option(min=1, max=1000, help="With --inputs: jobs open at once.")
    ] = 32,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a workflow on the coordinator, wait for it and print its output.

    Ctrl-C cancels what was submitted. With --detach the job is left to run. A coordinator that
    restarts meanwhile is waited for: it resumes the job.
    """
    from maestroctl.cli import submission as words

    if inputs is not None and input_text is not None:
        raise ConfigError("--input and --inputs are given both", hint="one of them is enough")
    if detach and follow:
        raise ConfigError("--detach does not wait, so it cannot --follow")
    base = words.read_submission(
        workflow,
        input_text=input_text,
        assignments=var or [],
        service_class=service_class,
        deadline=deadline,
    )
    if inputs is not None:
        from maestroctl.cli.submit_batch import run_batch

        runs = words.read_batch(inputs, base)
        code = run_async(run_batch(runs, url, parallel=parallel, detach=detach, as_json=as_json))
    else:
        from maestroctl.cli.submit_one import run_one

        words.check_input(base, workflow)
        code = run_async(run_one(base, url, follow=follow, detach=detach, as_json=as_json))
    raise typer.Exit(code)
