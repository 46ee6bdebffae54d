"""``maestroctl predictor``: the predictors of a running coordinator, and what they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, UrlOption, check_output_file, make_output_folder

app = typer.Typer(help="Look at the predictors, and teach them.", no_args_is_help=True)


@app.command("status")
def status(url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show the artifact, the process, and what was learned from this fleet."""
    from maestroctl.cli.api import get_once
    from maestroctl.cli.predict_view import status_tables

    document = get_once(url, "/api/predictor/status")
    if as_json:
        terminal.json(document)
        return
    for shown in status_tables(document):
        terminal.out.print(shown)


@app.command("reset")
def reset(
    workflow: Annotated[str | None, typer.Option(help="Only of this workflow.")] = None,
    role: Annotated[str | None, typer.Option(help="Only of this role.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    refitted: Annotated[
        bool, typer.Option("--refitted", help="Also the model fitted on this fleet's history.")
    ] = False,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget what was learned from this fleet; without options, all of it."""
    from maestroctl.cli.api import post_once

    names = {"workflow": workflow, "role": role, "model": model}
    body: dict[str, str | bool] = {k: v for k, v in names.items() if v is not None}
    if refitted:
        body["refitted"] = True
    document = post_once(url, "/api/predictor/reset", body)
    if as_json:
        terminal.json(document)
        return
    terminal.line(f"{document['cells_reset']} cells reset")


@app.command("add-model")
def add_model(
    name: Annotated[str, typer.Argument(help="The model, as the fleet file calls it.")],
    outcomes: Annotated[
        Path, typer.Option(metavar="FILE", help="Its answers: lines of JSON, or a table.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Artifact to write.")],
    artifact: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add to this, not the one that ships.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fit the head of a model that has one anew.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Teach the confidence router one more model, from that model's outcomes alone.

    A line of the file is {"question_text": "...", "correct": 0 or 1}; a .parquet table has these
    columns and `model`. Nothing else in the artifact changes. How good the new model's confidences
    are is said of questions that were held out.
    """
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.cli.predict_view import addition_lines
    from maestroctl.predict.artifact import load_artifact
    from maestroctl.predict.model_addition import run_addition
    from maestroctl.predict.shipped import load_shipped

    check_output_file(out)
    base = load_shipped() if artifact is None else load_artifact(artifact)
    with terminal.working("Fitting"):
        done = run_addition(base, name, outcomes, out, again=again)
    if as_json:
        terminal.json(done)
        return
    for line in addition_lines(done):
        terminal.line(line)


@app.command("report")
def report(
    stages: Annotated[Path, typer.Option(metavar="DIR", help="Folder of stage traces.")],
    routing: Annotated[Path, typer.Option(metavar="DIR", help="Folder of correctness tables.")],
    work: Annotated[Path, typer.Option(help="Keeps each section once it is measured.")] = Path(
        "results/prediction"
    ),
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("docs/prediction.md"),
    only: Annotated[
        list[str] | None, typer.Option(help="Measure this section, not the others; repeatable.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that fit trees.")] = 1,
) -> None:
    """Measure the predictors on a folder of traces and write docs/prediction.md."""
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.predict.report import write_report
    from maestroctl.predict.train import TrainConfig

    config = TrainConfig(num_threads=threads)
    make_output_folder(work)
    check_output_file(out)
    write_report(stages, routing, work, out, config=config, say=terminal.notice, only=only)
    terminal.notice(f"Wrote {out}.")
