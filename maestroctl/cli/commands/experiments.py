"""``maestroctl experiments``: the papers' tables and figures on the simulator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maestroctl.cli.commands.simulate import DataOption
from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, make_output_folder

if TYPE_CHECKING:
    from maestroctl.experiments.harness import Experiment, Scale

app = typer.Typer(help="Reproduce the papers' tables and figures.", no_args_is_help=True)


@app.command("list")
def list_experiments(as_json: JsonOption = False) -> None:
    """Show the names that `run` takes."""
    from maestroctl.experiments.catalogue import EXPERIMENTS

    if as_json:
        terminal.json(list(EXPERIMENTS))
        return
    for name in EXPERIMENTS:
        terminal.out.print(name)


@app.command("run")
def run(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Names of `list`, or `all`.")
    ],
    data: DataOption = None,
    out: Annotated[Path, typer.Option(help="Folder for JSON, Markdown and PNG.")] = Path(
        "experiments-out"
    ),
    jobs: Annotated[int | None, typer.Option(min=20, help="Jobs per run.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of headline cells.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one per processor unless given.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small runs, to see that it works.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="The papers' sizes; takes hours.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run experiments and write NAME.json, NAME.md and NAME.png of each.

    Ctrl-C keeps those that are finished and says how to go on.
    """
    from maestroctl.experiments import output
    from maestroctl.experiments.catalogue import EXPERIMENTS, check_names, run_experiment

    if quick and full:
        raise typer.BadParameter("small runs or the papers' sizes, not both: --quick or --full")
    wanted = list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))
    check_names(wanted)
    make_output_folder(out)
    scale = _scale(quick, full, jobs, seeds)
    documents: list[dict[str, Any]] = []
    try:
        for place, name in enumerate(wanted, start=1):
            with terminal.working(f"{name} ({place} of {len(wanted)})"):
                experiment = run_experiment(
                    name, scale, data, terminal.detail, workers=workers or _num_processors()
                )
            paths = output.write(experiment, out)
            documents.append(output.document(experiment))
            if not as_json:
                _show(experiment, paths)
    except KeyboardInterrupt:
        _say_how_to_go_on(wanted[: len(documents)], wanted[len(documents) :])
        raise
    if as_json:
        terminal.json(documents[0] if len(names) == 1 and names != ["all"] else documents)


def _scale(quick: bool, full: bool, jobs: int | None, seeds: int | None) -> Scale:
    from dataclasses import replace

    from maestroctl.experiments import harness

    scale = harness.QUICK if quick else harness.FULL if full else harness.DEFAULT
    if jobs is not None:
        scale = replace(scale, jobs=jobs, warmup=jobs // 10, headline=1)
    return scale if seeds is None else replace(scale, seeds=seeds)


def _num_processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _show(experiment: Experiment, paths: list[Path]) -> None:
    """The headline; tables are wider than a terminal, so they are in the file."""
    from rich.table import Table

    from maestroctl.experiments.output import headline_lines

    terminal.out.print(experiment.title, style="bold")
    if experiment.paper:
        terminal.out.print(f"The paper: {experiment.paper}")
    grid = Table.grid(padding=(0, 2))
    for name, value in headline_lines(experiment.headline):
        grid.add_row(name, value)
    terminal.out.print(grid)
    if all(path.suffix != ".png" for path in paths):
        terminal.detail("No picture: that needs matplotlib (the extra `experiments`).")
    terminal.notice(f"{experiment.seconds:.0f} s; wrote {', '.join(map(str, paths))}")


def _say_how_to_go_on(finished: list[str], left: list[str]) -> None:
    kept = f"Finished and kept: {', '.join(finished)}." if finished else "None was finished."
    terminal.notice(f"Interrupted. {kept}")
    if left:
        terminal.notice(f"Go on with the same options and: experiments run {' '.join(left)}")
