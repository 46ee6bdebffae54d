"""``maestroctl train``: fit the predictors on recorded traces and write one artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption

StagesOption = Annotated[Path, typer.Option("--stages", help="Folder of stage traces.")]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="APP", help="Application or source to leave out; repeat."),
]
EncoderOption = Annotated[
    str, typer.Option("--encoder", help="Text encoder: sketch, static, minilm or none.")
]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Threads of LightGBM.")]


def train(
    stages: StagesOption,
    out: Annotated[Path, typer.Option("--out", help="Artifact to write.")],
    routing: Annotated[
        Path | None, typer.Option("--routing", help="Folder of correctness tables (router).")
    ] = None,
    licensed_only: Annotated[
        bool, typer.Option("--licensed-only", help="Leave out sources that may not be shipped.")
    ] = False,
    exclude: ExcludeOption = None,
    encoder: EncoderOption = "sketch",
    threads: ThreadsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Fit the predictors on a folder of traces and write one artifact."""
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.predict.train import TrainConfig, TrainingRun, run_training

    run = TrainingRun(
        stages=stages,
        out=out,
        routing=routing,
        exclude=tuple(exclude or ()),
        licensed_only=licensed_only,
        config=TrainConfig(encoder=encoder, num_threads=threads),
    )
    with terminal.working("Training"):
        report = run_training(run)
    if as_json:
        terminal.json(report)
        return
    terminal.line(f"{report['path']}: {report['stages']} stages of {report['jobs']} jobs")
    terminal.line(f"{report['bytes']} bytes, {report['seconds']} s, digest {report['digest']}")
