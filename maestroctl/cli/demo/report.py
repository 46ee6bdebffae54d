"""What the demo prints at its end, for a person and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from maestroctl.cli.demo.engine_watch import EngineWatch, Transition
from maestroctl.cli.demo.plan import DemoPlan
from maestroctl.cli.demo.run import DemoResult
from maestroctl.cli.render import seconds_text, stages_table, table
from maestroctl.cli.submit_one import took_s
from maestroctl.domain.units import format_bytes, format_seconds


def introduction(plan: DemoPlan, version: str, device: str) -> str:
    """What will happen, in words."""
    names = ", ".join(plan.fleet.models)
    text = (
        f"One small model (SmolLM2-135M, real weights) under three names: {names}."
        f" It runs on {version}, {device}.\n"
        f"Models may use {format_bytes(plan.budget_bytes)}: an awake engine takes"
        f" {format_bytes(plan.awake_bytes)}, a sleeping one {format_bytes(plan.asleep_bytes)},"
        " so with all three up only one can be awake, and the others sleep."
    )
    if plan.is_tight:
        text += (
            f"\nThis machine has too little free memory for that: beside the awake engine"
            f" {_how_many(plan.num_asleep)} can sleep, so engines are stopped instead, which"
            " takes longer. The workflows are shorter for it."
        )
    return text


def print_report(out: Console, result: DemoResult) -> None:
    """Stages, answers, what waking cost."""
    for title, job in result.jobs:
        head = Text(f"\n{title}", style="bold")
        head.append(f"  {format_seconds(took_s(job))} in all", style="default not bold")
        out.print(head)
        out.print(stages_table(job["stages"]))
        out.print(Text(" ".join(str(job["output"] or "").split())[:200], style="dim"))
    request = result.request
    out.print(Text("\nplain OpenAI request", style="bold"))
    out.print(
        Text(
            f"{request['model']} answered after {format_seconds(request['seconds'])}:"
            f" {' '.join(str(request['text']).split())[:60]}"
        )
    )
    out.print(Text("\nwhat a change of model cost", style="bold"))
    out.print(costs_table(result.engines))
    out.print(_conclusion(result.engines))
    out.print(f"Took {format_seconds(result.took_s)}. Nothing is left running.", style="dim")


def costs_table(engines: EngineWatch) -> Table:
    """Count, median and spread of every kind of transition that was seen."""
    made = table("", ("TIMES", "right"), ("MEDIAN", "right"), ("LEAST", "right"), ("MOST", "right"))
    for kind, figures in engines.summary().items():
        made.add_row(
            kind,
            str(figures["count"]),
            *(seconds_text(figures[key]) for key in ("median_s", "least_s", "most_s")),
        )
    return made


def result_document(result: DemoResult) -> dict[str, Any]:
    """The same as plain JSON values."""
    return {
        "took_s": round(result.took_s, 3),
        "budget_bytes": result.plan.budget_bytes,
        "awake_bytes": result.plan.awake_bytes,
        "asleep_bytes": result.plan.asleep_bytes,
        "engines_that_fit_asleep": result.plan.num_asleep,
        "most_awake_at_once": result.engines.most_awake,
        "transitions": result.engines.summary(),
        "cold_over_wake": result.engines.cold_over_wake,
        "jobs": [{"title": title, **job} for title, job in result.jobs],
        "plain_request": result.request,
    }


def _conclusion(engines: EngineWatch) -> Text:
    ratio = engines.cold_over_wake
    if ratio is None:
        missing = "woken" if Transition.WAKE not in engines.times else "started"
        return Text(f"No engine was {missing}, so there is nothing to compare.")
    text = Text(f"Waking was {ratio:.0f} times faster than a cold start")
    text.append(" (medians of this run).")
    if engines.most_awake == 1:
        text.append(" Once all three were up, never more than one was awake.")
    return text


def _how_many(number: int) -> str:
    return "none" if number == 0 else "one"
