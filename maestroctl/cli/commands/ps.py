"""``maestroctl ps``: what is where."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from maestroctl.cli import render
from maestroctl.cli.api import CoordinatorApi, run_async
from maestroctl.cli.context import terminal

UrlOption = Annotated[str | None, typer.Option("--url", help="Coordinator, if not the default.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def ps(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show every model on every node: state, memory, what runs."""

    async def fetch() -> Any:
        async with CoordinatorApi(url) as api:
            return await api.get("/api/ps")

    document = run_async(fetch())
    if as_json:
        terminal.json(document)
        return
    terminal.out.print(render.engines_table(document["engines"]))
    if document["devices"]:
        terminal.out.print(render.devices_table(document["devices"]))
    for row in document["engines"]:
        if row.get("failure"):
            terminal.err.print(f"{row['model']}: {row['failure']}", style="red")
