"""``maestroctl train``: fit the predictors on recorded traces and write one artifact."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, check_output_file

if TYPE_CHECKING:
    from maestroctl.predict.train import TrainConfig

StagesOption = Annotated[Path, typer.Option("--stages", help="Folder of stage traces.")]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="APP", help="Application or source to leave out; repeat."),
]


class Encoder(StrEnum):
    """What turns text into numbers; see `predict.train`."""

    SKETCH = "sketch"
    STATIC = "static"
    MINILM = "minilm"
    NONE = "none"


EncoderOption = Annotated[Encoder, typer.Option("--encoder", help="Text encoder.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Threads of LightGBM.")]


def train(
    stages: Annotated[Path | None, typer.Option("--stages", help="Folder of stage traces.")] = None,
    from_history: Annotated[
        bool, typer.Option("--from-history", help="Learn from what this fleet has run.")
    ] = False,
    state: Annotated[
        str | None, typer.Option(metavar="URL", help="State database of --from-history.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Artifact to write; --from-history has a place for it."),
    ] = None,
    routing: Annotated[
        Path | None, typer.Option("--routing", help="Folder of correctness tables (router).")
    ] = None,
    licensed_only: Annotated[
        bool, typer.Option("--licensed-only", help="Leave out sources that may not be shipped.")
    ] = False,
    exclude: ExcludeOption = None,
    encoder: EncoderOption = Encoder.SKETCH,
    threads: ThreadsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Fit the predictors on a folder of traces, or on this fleet's own history.

    What is fitted on own history is kept only if it predicts the newest jobs better than what was
    told when they ran; `serve` then asks it beside the trained model from its next start on.
    """
    if from_history == (stages is not None):
        raise typer.BadParameter("give --stages DIR or --from-history")
    if stages is not None and out is None:
        raise typer.BadParameter("--stages needs --out FILE")
    for option, given, wanted in (
        ("--state", state is not None, from_history),
        ("--routing", routing is not None, not from_history),
        ("--exclude", bool(exclude), not from_history),
        ("--licensed-only", licensed_only, not from_history),
    ):
        if given and not wanted:
            belongs = "--stages" if from_history else "--from-history"
            raise typer.BadParameter(f"{option} goes with {belongs}")
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.predict.train import TrainConfig, TrainingRun, run_training

    config = TrainConfig(encoder=encoder.value, num_threads=threads)
    if stages is None or out is None:
        _refit(state, out, config, as_json=as_json)
        return
    check_output_file(out)
    run = TrainingRun(
        stages=stages,
        out=out,
        routing=routing,
        exclude=tuple(exclude or ()),
        licensed_only=licensed_only,
        config=config,
    )
    with terminal.working("Training"):
        report = run_training(run)
    if as_json:
        terminal.json(report)
        return
    terminal.line(f"{report['path']}: {report['stages']} stages of {report['jobs']} jobs")
    terminal.line(f"{report['bytes']} bytes, {report['seconds']} s, digest {report['digest']}")


def _refit(state: str | None, out: Path | None, config: TrainConfig, *, as_json: bool) -> None:
    from maestroctl.cli.fleet_learned import state_url
    from maestroctl.config.home import home_dir
    from maestroctl.live.coordinator.own_refit import refit_own
    from maestroctl.live.coordinator.predictor_service import LOCAL_MODEL

    where = state_url(state)
    out = out or home_dir(os.environ) / LOCAL_MODEL
    check_output_file(out)
    with terminal.working("Training on own history"):
        report = refit_own(where, out, config)
    if as_json:
        terminal.json(report)
    elif report["better"]:
        terminal.line(f"{report['path']}: {report['stages']} stages of {report['jobs']} jobs")
    else:
        seen = f"{report['stages']} stages of {report['jobs']} jobs that are over"
        terminal.line(f"nothing written: {seen} give no better model than the one in use")
