"""``maestroctl config``: check files offline; show the values that hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.runtime import JsonOption

app = typer.Typer(help="Check and show configuration; starts nothing.", no_args_is_help=True)


@app.command("validate")
def validate(
    files: Annotated[list[Path], typer.Argument(help="Fleet files and workflows, in any order.")],
    fleet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check the workflows against the models of this fleet."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find every mistake in fleet files and workflows. Exit code 2 when there is one.

    With one fleet file among them (or --fleet), workflows are checked against it, too.
    """
    from maestroctl.cli.config_check import check_files

    checked = check_files(files, fleet)
    num_errors = sum(len(file.errors) for file in checked)
    if as_json:
        terminal.json({"ok": num_errors == 0, "files": [file.as_json() for file in checked]})
    else:
        for file in checked:
            for error in file.errors:
                terminal.error(error)
            if not file.errors:
                terminal.line(f"{file.file}: good {file.kind} file")
        if num_errors:
            mistakes = f"{num_errors} mistake{'s' if num_errors > 1 else ''}"
            terminal.notice(
                f"{mistakes} in {sum(bool(file.errors) for file in checked)} of"
                f" {len(checked)} files."
            )
    if num_errors:
        raise typer.Exit(ExitCode.USAGE)


@app.command("show")
def show(
    file: Annotated[
        Path | None, typer.Argument(help="fleet.toml; without one, the built-in fleet.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only what is not at its default.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every value that holds and where it came from. Secrets are hidden."""
    from maestroctl.cli import fleet_source, render
    from maestroctl.config.effective import effective_values
    from maestroctl.config.source import OriginKind

    loaded = fleet_source.load(file)
    values = [
        value
        for value in effective_values(loaded)
        if not (changed and value.origin.kind is OriginKind.DEFAULT)
    ]
    if as_json:
        terminal.json(
            {
                "file": loaded.file,
                "values": [
                    {
                        "key": v.key,
                        "value": v.value,
                        "origin": v.origin.kind,
                        "where": v.origin.where,
                    }
                    for v in values
                ],
            }
        )
        return
    terminal.out.print(render.values_table((v.key, v.value, str(v.origin)) for v in values))
