"""``maestroctl evaluate``: how good the predictors are on a folder of traces."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.commands.train import (
    Encoder,
    EncoderOption,
    ExcludeOption,
    StagesOption,
    ThreadsOption,
)
from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption


class Ablation(StrEnum):
    """What is left out; see `predict.train.ablation`."""

    NO_EMBEDDING = "no_embedding"
    NO_TOOL_INTENT = "no_tool_intent"


def evaluate(
    stages: StagesOption,
    artifact: Annotated[
        Path | None,
        typer.Option("--artifact", help="Judge this artifact; else cross-validate by task."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Replay each application as an unseen one.")
    ] = False,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Of the cross-validation.")] = 4,
    ablation: Annotated[
        Ablation | None, typer.Option("--ablation", help="Fit without one part.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Fit the papers' baselines too.")
    ] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Bootstrap intervals over tasks.")
    ] = False,
    latency_stages: Annotated[
        int, typer.Option("--latency-stages", min=0, help="Stages to time; 0 = none.")
    ] = 400,
    exclude: ExcludeOption = None,
    encoder: EncoderOption = Encoder.SKETCH,
    threads: ThreadsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure the predictors on a folder of traces, never on a task they were trained on."""
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.cli.predict_view import evaluation_table
    from maestroctl.predict import train
    from maestroctl.predict.artifact import load_artifact
    from maestroctl.predict.evaluate import evaluate_jobs

    config = train.TrainConfig(encoder=encoder.value, num_threads=threads)
    model = None if artifact is None else load_artifact(artifact)
    report = evaluate_jobs(
        train.load_jobs(stages, exclude or ()),
        model=model,
        config=config if ablation is None else train.ablation(ablation, config),
        num_folds=folds,
        online=online,
        with_baselines=baselines,
        intervals=intervals,
        latency_stages=latency_stages,
        progress=terminal.notice,
    )
    if as_json:
        terminal.json(report)
        return
    terminal.line(report["protocol"])
    for note in report["notes"]:
        terminal.line(note)
    terminal.out.print(evaluation_table(report))
