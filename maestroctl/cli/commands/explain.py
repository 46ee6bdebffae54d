"""``maestroctl explain``: why a job went as it did."""

from __future__ import annotations

import os
from typing import Annotated, Any
from urllib.parse import quote

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, UrlOption, not_empty
from maestroctl.errors import MaestroError, RequestError


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="JOB[/STAGE]",
            help="Id of a job or request; a step's name or a stage's id.",
            callback=not_empty,
        ),
    ],
    url: UrlOption = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Read this state database, with no coordinator."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show every decision about a job: order, model, node, room made, predicted against actual.

    Asks the coordinator; when none answers, what it left in its state database is read.
    """
    document = _from_state(state, what) if state is not None else _from_coordinator(url, what)
    if as_json:
        terminal.json(document)
        return
    from maestroctl.cli.explain_view import print_explanation

    print_explanation(terminal.out, document)


def _from_coordinator(url: str | None, what: str) -> dict[str, Any]:
    from maestroctl.cli.api import CoordinatorUnreachable, get_once

    def ask(job: str, **query: str) -> dict[str, Any]:
        found: dict[str, Any] = get_once(url, f"/api/jobs/{quote(job, safe='')}/explain", **query)
        return found

    job, slash, stage = what.rpartition("/")
    try:
        try:
            return ask(what)
        except RequestError as exc:
            if not slash or exc.http_status != 404:
                raise
            return ask(job, stage=stage)
    except CoordinatorUnreachable:
        if url is not None or "MAESTROCTL_URL" in os.environ:
            raise
        terminal.notice("No coordinator answers; reading the state that one left.")
        return _from_state(None, what)


def _from_state(state: str | None, what: str) -> dict[str, Any]:
    from maestroctl.config.home import default_state_url, expand_state_url
    from maestroctl.live.coordinator.explain import explain_job
    from maestroctl.store.reader import StateReader

    named = state or os.environ.get("MAESTROCTL_STATE")
    where = expand_state_url(named, os.environ) if named else default_state_url(os.environ)
    with StateReader.open(where) as store:
        found = explain_job(store, what)
        job, slash, stage = what.rpartition("/")
        if found["job"] is None and slash:
            found = explain_job(store, job, stage)
    near = ", ".join(found["near"])
    hint = f"did you mean {near}?" if near else "`maestroctl jobs` lists them"
    if found["job"] is None:
        raise MaestroError(f"there is no job {what!r}", hint=hint)
    if not found["stages"] and near:
        raise MaestroError(f"the job {job!r} has no stage {stage!r}", hint=hint)
    return found
