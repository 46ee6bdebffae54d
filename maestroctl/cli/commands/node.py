"""``maestroctl node run``: the node daemon, as `serve` starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The node daemon of one machine.", no_args_is_help=True)


@app.command("run")
def run(
    state_dir: Annotated[Path, typer.Option(help="Private folder: sockets, engines, logs.")],
    name: Annotated[str, typer.Option(help="Name of the node, for process lists.")] = "local",
    debug: Annotated[bool, typer.Option("--debug", help="Log more.")] = False,
) -> None:
    """Run the node daemon in the foreground. `maestroctl serve` does this for its own machine."""
    from maestroctl.live.node.__main__ import run_daemon

    run_daemon(state_dir, name, debug=debug)
