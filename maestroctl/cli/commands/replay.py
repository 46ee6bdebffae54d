"""``maestroctl replay``: recorded events through today's decision code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.exit_codes import ExitCode
from maestroctl.cli.runtime import JsonOption

if TYPE_CHECKING:
    from maestroctl.replay.compare import Difference
    from maestroctl.replay.run import Replay

_MAX_LINES = 60
"""Of a difference on the terminal; --json has all."""


def replay(
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="Event logs, or folders of them.")
    ],
    actions: Annotated[
        bool,
        typer.Option(
            "--actions", help="Compare what is done; let changed explanations of it pass."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run recorded events through today's decision code and show the first difference.

    `serve` and `simulate --event-logs` write such logs. Exit code 0 when everything is decided as
    recorded, 1 when something is not.
    """
    from maestroctl.replay.run import replay_log

    replays = []
    with terminal.working("Replaying"):
        for path in _find_logs(logs):
            replays.append(replay_log(path, explanations=not actions))
            if not as_json:
                _print(replays[-1])
    if as_json:
        documents = [_document(found) for found in replays]
        equal = all(document["equal"] for document in documents)
        terminal.json({"equal": equal, "logs": documents})
    if any(found.difference is not None for found in replays):
        raise typer.Exit(ExitCode.FAILED)


def _find_logs(paths: list[Path]) -> list[Path]:
    """Every log named, and in place of a folder the newest part of each log in it."""
    from maestroctl.errors import ConfigError

    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(
                f"there is no event log in {path}",
                hint="logs end in .jsonl; `serve` writes them to `events` in its data folder",
            )
        found += inside
    return found


def _print(found: Replay) -> None:
    from rich.text import Text

    from maestroctl.domain.units import format_seconds

    head = Text(f"{found.path.name}  ", style="bold")
    events = f"{found.num_events} events, {found.num_effects} effects"
    events += f", {format_seconds(found.span_s)} of {_whose(found)}"
    if found.difference is None:
        head.append("equal", style="green").append(f": {events}", style="default not bold")
        terminal.out.print(head)
        if found.num_reworded:
            terminal.notice(f"  {found.num_reworded} events are explained otherwise than recorded.")
    else:
        head.append("differs", style="bold red").append(f" at event {found.difference.number}")
        terminal.out.print(head)
        _print_difference(found.difference)
    if found.num_events == 0:
        terminal.notice("  The log has no event.")


def _whose(found: Replay) -> str:
    return "the coordinator" if found.header.core == "coordinator" else f"node {found.header.name}"


def _print_difference(difference: Difference) -> None:
    from rich.text import Text

    from maestroctl.replay.compare import describe_event

    out = terminal.out
    out.print(Text(f"  at {difference.at_s:.6f} s, told: {describe_event(difference.event)}"))
    what = "is explained otherwise" if difference.only_explained else "is answered otherwise"
    out.print(Text(f"  {what} (- recorded, + today)"))
    lines = difference.diff
    for line in lines[:_MAX_LINES]:
        style = {"-": "red", "+": "green"}.get(line[:1], "dim")
        out.print(Text(f"    {line}", style=style))
    if len(lines) > _MAX_LINES:
        terminal.notice(f"    and {len(lines) - _MAX_LINES} lines more; --json has all of them")


def _document(found: Replay) -> dict[str, Any]:
    from maestroctl.replay.compare import describe_event

    difference = found.difference
    return {
        "log": str(found.path),
        "core": found.header.core,
        "name": found.header.name,
        "recorded_by": found.header.maestroctl,
        "started_at": found.header.started_at,
        "equal": difference is None,
        "events": found.num_events,
        "effects": found.num_effects,
        "span_s": found.span_s,
        "reworded": found.num_reworded,
        "difference": None
        if difference is None
        else {
            "number": difference.number,
            "at_s": difference.at_s,
            "event": describe_event(difference.event),
            "only_explained": difference.only_explained,
            "expected": list(difference.expected),
            "got": list(difference.got),
            "diff": list(difference.diff),
        },
    }
