"""``maestroctl profile``: measure what models cost on this machine; show and compare profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, run_async

_MEASURE = "run"


class _MeasuresByDefault(TyperGroup):
    """``profile MODEL`` means ``profile run MODEL``; a model called ``show`` needs the ``run``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command in front where none is named."""
        first = args[0] if args else ""
        if first not in self.commands and first not in ctx.help_option_names:
            args = [_MEASURE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_MeasuresByDefault,
    help="Measure what models cost on this machine: `profile [MODEL...]`, as `profile run`.",
)

NameArgument = Annotated[
    str, typer.Argument(help="A file, a model, or DEVICE/MODEL as in the folder of profiles.")
]


@app.command(_MEASURE)
def measure(
    models: Annotated[
        list[str] | None, typer.Argument(help="Models of the fleet; all of them without one.")
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="fleet.toml; without one, the built-in fleet."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer repeats: three minutes for a small model.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of profiles; by default the one `serve` reads."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure models on their real engines and write DIR/<device>/<model>.toml.

    Decoding by batch size, prefill by length, memory awake and asleep, cold start, wake. Nothing
    else should run meanwhile. Ctrl-C keeps what is measured.
    """
    from maestroctl.cli.profile_run import profile_models

    written = run_async(profile_models(models or [], fleet, out, quick=quick, as_json=as_json))
    if as_json:
        terminal.json({"profiles": written})


@app.command("show")
def show(
    name: Annotated[
        str | None, typer.Argument(help="A file, a model, or DEVICE/MODEL; all without one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a profile, or list those that are known."""
    from maestroctl.cli import profile_view

    if name is None:
        profile_view.show_list(as_json=as_json)
    else:
        profile_view.show_one(name, as_json=as_json)


@app.command("diff")
def diff(first: NameArgument, second: NameArgument, as_json: JsonOption = False) -> None:
    """Compare two profiles, figure by figure."""
    from maestroctl.cli import profile_view

    profile_view.show_diff(first, second, as_json=as_json)
