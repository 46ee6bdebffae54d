"""``maestroctl predict``: what is predicted for one prompt, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, read_text_argument


def predict(
    prompt: Annotated[str, typer.Argument(help="Text, @FILE, or - for standard input.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="Candidate model; repeat for more.")
    ] = None,
    role: Annotated[str, typer.Option(help="Agent that makes the call.")] = "assistant",
    workflow: Annotated[str, typer.Option(help="Workflow the call belongs to.")] = "",
    step: Annotated[str, typer.Option(help="Step of the workflow that makes it.")] = "",
    system: Annotated[str, typer.Option(help="System prompt: text, @FILE or -.")] = "",
    tools: Annotated[int, typer.Option(min=0, help="Number of tools the call may use.")] = 0,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Limit of the output.")
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", help="In place of the one that ships.")
    ] = None,
    state: Annotated[
        str | None, typer.Option(metavar="URL", help="State database of the fleet.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict length, tool use, total and confidence for one prompt, with the reasons.

    Needs no running coordinator: what a fleet has learned is read from its state database and
    data folder, when there are any.
    """
    from maestroctl.cli.predict_extra import need_predict_extra

    need_predict_extra()
    from maestroctl.cli.fleet_learned import read_learned
    from maestroctl.cli.predict_view import prediction_tables
    from maestroctl.predict.artifact import load_artifact
    from maestroctl.predict.explain import explain_prompt
    from maestroctl.predict.shipped import load_shipped

    learned = read_learned(state)
    said = explain_prompt(
        load_shipped() if artifact is None else load_artifact(artifact),
        read_text_argument(prompt),
        system=read_text_argument(system),
        candidates=tuple(model or ()),
        role=role,
        workflow=workflow,
        step=step,
        tools=tools,
        max_tokens=max_tokens,
        state=learned.state,
        local=learned.local,
    )
    if as_json:
        terminal.json(said)
        return
    for table in prediction_tables(said):
        terminal.out.print(table)
