"""``maestroctl demo``: small real models, two workflows, what happened, nothing left behind."""

from __future__ import annotations

import typer

from maestroctl.cli.runtime import JsonOption


def demo(as_json: JsonOption = False) -> None:
    """Serve small real models on this machine, run two workflows on them, print what happened.

    Takes a few minutes, needs no network once `install.sh` has run, and stops everything that it
    started, on Ctrl-C too.
    """
    from maestroctl.cli.demo.show import show_demo

    raise typer.Exit(show_demo(as_json=as_json))
