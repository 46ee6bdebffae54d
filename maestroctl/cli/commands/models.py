"""``maestroctl models``: wake, sleep, evict, pin and unpin by hand; list; fetch weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from maestroctl.cli import render
from maestroctl.cli.api import CoordinatorApi, run_async
from maestroctl.cli.commands.ps import JsonOption, UrlOption
from maestroctl.cli.context import terminal
from maestroctl.domain.messages import ModelAction

app = typer.Typer(help="Models: list them, fetch them, move them by hand.", no_args_is_help=True)

ModelArgument = Annotated[str, typer.Argument(help="Name of a model.")]


@app.command("list")
def list_models(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Every configured model, whatever its state. Wakes nothing."""

    async def fetch() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.get("/v1/models")

    document = run_async(fetch())
    if as_json:
        terminal.json(document)
        return
    made = render.table("NAME", "KIND", "STATE")
    for model in document["data"]:
        extra = model.get("maestro", {})
        state = extra.get("status") or extra.get("state") or "–"
        made.add_row(model["id"], extra.get("kind", "model"), render.status_text(str(state)))
    terminal.out.print(made)


def _act(action: ModelAction, model: str, url: str | None, as_json: bool) -> None:
    async def call() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.post(f"/api/models/{quote(model, safe='')}/{action.value}")

    with terminal.err.status(f"{action.value} {model}"):
        document = run_async(call())
    if as_json:
        terminal.json(document)
    else:
        terminal.err.print(f"{model}: {action.value} done")


@app.command("wake")
def wake(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Start or wake a model now."""
    _act(ModelAction.WAKE, model, url, as_json)


@app.command("sleep")
def sleep(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Put a model to sleep once what it runs has finished."""
    _act(ModelAction.SLEEP, model, url, as_json)


@app.command("evict")
def evict(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Stop a model's engine and free all its memory."""
    _act(ModelAction.EVICT, model, url, as_json)


@app.command("pin")
def pin(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Never let a model give way to another."""
    _act(ModelAction.PIN, model, url, as_json)


@app.command("unpin")
def unpin(model: ModelArgument, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Undo pin."""
    _act(ModelAction.UNPIN, model, url, as_json)


@app.command("fetch")
def fetch(
    fleet_file: Annotated[
        Path | None, typer.Argument(help="fleet.toml; without one, the built-in fleet.")
    ] = None,
) -> None:
    """Have the weights of every model of a fleet on this machine, so that starts need no network."""
    from maestroctl.cli.fleet_source import load
    from maestroctl.live.models.sources import prepare_model

    fleet = load(fleet_file).spec

    async def prepare() -> None:
        for model in fleet.models.values():
            if model.source is None:
                continue
            with terminal.err.status(f"{model.name}: {model.source}") as status:
                prepared = await prepare_model(
                    model.source,
                    fleet.engines[model.engine],
                    tensor_parallel=model.tensor_parallel,
                    progress=lambda text, name=model.name: status.update(f"{name}: {text}"),  # type: ignore[misc]
                )
            terminal.err.print(f"{model.name}: {model.source} is ready in {prepared.folder}")

    run_async(prepare())
