"""``maestroctl serve``: the coordinator and its gateway, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.runtime import run_async


def serve(
    fleet_file: Annotated[
        Path | None, typer.Argument(help="fleet.toml; without one, this machine is the fleet.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the gateway, in place of the file's."),
    ] = None,
) -> None:
    """Serve the fleet until Ctrl-C. The first Ctrl-C drains, a second one stops now."""
    from maestroctl.cli.fleet_source import load_fleet_for_serve
    from maestroctl.cli.foreground import run_foreground

    fleet = load_fleet_for_serve(fleet_file, listen).spec
    raise typer.Exit(run_async(run_foreground(fleet)))
