"""``maestroctl experiments``: the papers' tables and figures on the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.commands.simulate import DataOption
from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption

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
    name: Annotated[str, typer.Argument(help="A name of `list`, or `all`.")],
    data: DataOption = None,
    out: Annotated[Path, typer.Option(help="Folder for JSON, Markdown and PNG.")] = Path(
        "experiments-out"
    ),
    jobs: Annotated[int | None, typer.Option(min=20, help="Jobs per run.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of headline cells.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small runs, to see that it works.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="The papers' sizes; takes hours.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Run an experiment and write NAME.json, NAME.md and NAME.png."""
    from dataclasses import replace

    from maestroctl.experiments import harness, output
    from maestroctl.experiments.catalogue import EXPERIMENTS, run_experiment

    scale = harness.QUICK if quick else harness.FULL if full else harness.Scale()
    if jobs is not None:
        scale = replace(scale, jobs=jobs, warmup=jobs // 10)
    if seeds is not None:
        scale = replace(scale, seeds=seeds)
    documents = []
    for one in list(EXPERIMENTS) if name == "all" else [name]:
        experiment = run_experiment(one, scale, data, _progress, workers=workers)
        paths = output.write(experiment, out)
        documents.append(output.document(experiment))
        if not as_json:
            terminal.out.print(output.markdown(experiment), markup=False, highlight=False)
            terminal.notice("Wrote " + ", ".join(str(path) for path in paths))
    if as_json:
        terminal.json(documents if name == "all" else documents[0])


def _progress(line: str) -> None:
    if terminal.verbose:
        terminal.notice(line)
