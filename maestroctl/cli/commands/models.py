"""``maestroctl models``: wake, sleep, evict, pin and unpin by hand; list; fetch weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, ModelArgument, UrlOption, run_async

app = typer.Typer(help="Models: list them, fetch them, move them by hand.", no_args_is_help=True)


@app.command("list")
def list_models(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Every configured model and group, whatever its state. Wakes nothing."""
    from maestroctl.cli import render
    from maestroctl.cli.api import get_once

    document = get_once(url, "/v1/models")
    if as_json:
        terminal.json(document)
    else:
        terminal.out.print(render.model_list_table(document["data"]))


def _act(action: str, model: str, url: str | None, as_json: bool) -> None:
    from maestroctl.cli.api import post_once

    with terminal.working(f"{action} {model}"):
        document = post_once(url, f"/api/models/{quote(model, safe='')}/{action}")
    if as_json:
        terminal.json(document)
    else:
        note = document["note"]
        terminal.err.print(f"{model} {note}" if note else f"{model}: {action} done", markup=False)


@app.command("wake")
def wake(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Start or wake a model now."""
    _act("wake", model, url, as_json)


@app.command("sleep")
def sleep(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Put a model to sleep once what it runs has finished."""
    _act("sleep", model, url, as_json)


@app.command("evict")
def evict(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Stop a model's engine and free all its memory."""
    _act("evict", model, url, as_json)


@app.command("pin")
def pin(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Never let a model give way to another."""
    _act("pin", model, url, as_json)


@app.command("unpin")
def unpin(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Undo pin."""
    _act("unpin", model, url, as_json)


@app.command("fetch")
def fetch(
    fleet_file: Annotated[
        Path | None, typer.Argument(help="fleet.toml; without one, the built-in fleet.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have the weights of a fleet's models on this machine, so that starts need no network."""
    from maestroctl.cli.model_fetch import fetch_models

    fetched = run_async(fetch_models(fleet_file))
    if as_json:
        terminal.json({"models": fetched})
