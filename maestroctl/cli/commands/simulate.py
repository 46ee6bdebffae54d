"""``maestroctl simulate``: a declared fleet and workload in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from maestroctl.cli.context import terminal
from maestroctl.cli.runtime import JsonOption, make_output_folder

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of recorded traces; without it, the fitted generator."),
]

_MAX_REASONS = 3
"""On the terminal; --json has all."""


def simulate(
    config: Annotated[Path, typer.Argument(help="TOML file: fleet, costs, workload, errors.")],
    data: DataOption = None,
    seed: Annotated[int | None, typer.Option(help="In place of the file's.")] = None,
    ordering: Annotated[str | None, typer.Option(help="In place of the file's policy.")] = None,
    event_logs: Annotated[
        Path | None,
        typer.Option("--event-logs", help="Folder for event logs, to be looked at with `replay`."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a workload through the scheduler in simulated time and show what it comes to.

    The decisions are those of a live coordinator and its nodes; the same file, data and seed give
    the same figures.
    """
    from maestroctl.sim.config import load_simulation
    from maestroctl.sim.run import run_simulation

    asked = {"run.seed": seed, "policy.ordering": ordering}
    overrides = {key: value for key, value in asked.items() if value is not None}
    spec = load_simulation(config, data, overrides)
    if event_logs is not None:
        make_output_folder(event_logs)
    with terminal.working("Simulating"):
        figures = run_simulation(spec, event_logs)
    if as_json:
        terminal.json(figures)
        return
    terminal.out.print(_table(figures))
    for reason, number in list(figures["unfinished"].items())[:_MAX_REASONS]:
        terminal.notice(f"{number} of {figures['all']['jobs']} jobs did not finish: {reason}")
    terminal.notice(
        f"{figures['simulated_s']:.0f} s simulated in {figures['seconds']:.1f} s,"
        f" {figures['events']} events."
    )


def _table(figures: dict[str, Any]) -> Any:
    from maestroctl.cli.render import table, titled

    names = ("JOBS", "SLO", "LATENCY S", "P95", "QUEUE S", "TTFT S", "TPOT MS")
    made = table("CLASS", *((name, "right") for name in names))
    for name in ("interactive", "batch", "all"):
        part = figures[name]
        if not part["jobs"]:
            continue
        made.add_row(
            name,
            str(part["jobs"]),
            _number(part["slo_attainment"], 100, "%"),
            _number(part["latency_s"]["mean"]),
            _number(part["latency_s"]["p95"]),
            _number(part["queue_s"]["mean"]),
            _number(part["ttft_s"]["mean"]),
            _number(part["tpot_s"]["mean"], 1000),
        )
    return titled(f"ordering: {figures['policy']}", made)


def _number(value: float | None, factor: float = 1.0, unit: str = "") -> str:
    return "-" if value is None else f"{value * factor:.4g}{unit}"
