"""``maestroctl init``: a starter fleet and workflow to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption
from maestroctl.errors import ConfigError


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where; made when it is not there.")
    ] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files of these names.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented fleet.toml and a workflow that runs on it as it is."""
    from maestroctl.config.starter import starter_files

    files = {folder / name: text for name, text in starter_files().items()}
    write_new(files, force=force)
    if as_json:
        terminal.json({"files": [str(path) for path in files]})
        return
    for path in files:
        terminal.line(f"wrote {path}")
    fleet, workflow = files
    for command in (
        f"maestroctl config validate {fleet} {workflow}",
        f"maestroctl serve {fleet}",
        f'maestroctl submit {workflow} --input "why bread rises" --follow',
    ):
        terminal.err.print(f"  {command}", style="dim", soft_wrap=True)


def write_new(files: dict[Path, str], *, force: bool) -> None:
    """Write all files or, when one is there already, none.

    Raises:
        ConfigError: a file is there and `force` is not set, or the folder cannot be written.
    """
    existing = [str(path) for path in files if path.exists() or path.is_symlink()]
    if existing and not force:
        is_are = "is" if len(existing) == 1 else "are"
        raise ConfigError(
            f"{' and '.join(existing)} {is_are} there already; nothing was written",
            hint="--force overwrites, or name another folder: maestroctl init DIR",
        )
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise ConfigError(f"cannot write {path}: {exc.strerror}") from exc
