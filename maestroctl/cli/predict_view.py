"""Tables of the prediction commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table


def evaluation_table(report: Mapping[str, Any]) -> Table:
    """Pooled figures first, then one row per application."""
    table = Table(title=f"{report['stages']} stages of {report['jobs']} jobs")
    table.add_column("application", overflow="fold")
    for name in ("MAE", "R²", "R² log", "tool loss", "τ total", "q90 cover"):
        table.add_column(name, justify="right")
    for app, figures in {"all": report, **report["per_app"]}.items():
        length = figures["length"]
        table.add_row(
            app,
            *(_number(length[key]) for key in ("mae", "r2", "r2_log")),
            _number(figures["tool_intent"]["log_loss"]),
            _number(figures["total"]["kendall_tau"]),
            _number(figures["coverage"]["q90"]),
        )
    return table


def prediction_tables(said: Mapping[str, Any]) -> tuple[Table, Table]:
    """What is predicted per candidate, and the columns that moved the median."""
    final = said["final"]
    per_model = Table(
        title=f"Output {final['q50']:.0f} tokens (90 % under {final['q90']:.0f}),"
        f" tool call {final['p_tool']:.0%}"
    )
    per_model.add_column("model", overflow="fold")
    for name in ("q50", "q90", "total", "confidence"):
        per_model.add_column(name, justify="right")
    for model, figures in said["candidates"].items():
        per_model.add_row(
            model,
            _number(figures["q50"]),
            _number(figures["q90"]),
            _number(final["total_tokens"].get(model)),
            _number(final["confidence"].get(model)),
        )
    reasons = Table(title=f"Usual length {said['usual']:.0f} tokens; what moved it")
    reasons.add_column("feature", overflow="fold")
    reasons.add_column("value", overflow="fold")
    reasons.add_column("factor", justify="right")
    for moved in said["moved_by"]:
        value = moved["value"]
        shown = value if isinstance(value, str) else _number(value)
        reasons.add_row(moved["feature"], shown, f"× {moved['factor']:.2f}")
    return per_model, reasons


def status_table(document: Mapping[str, Any]) -> Table:
    """The status document, one row per figure."""
    table = Table(show_header=False)
    table.add_column("part")
    table.add_column("figure")
    table.add_column("value", overflow="fold")
    for part in ("artifact", "service", "online", "refit"):
        for name, value in document[part].items():
            table.add_row(part, name, _plain(value))
    return table


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(own)}" for name, own in value.items())
    if isinstance(value, list):
        return "; ".join(map(_plain, value)) or "-"
    return _number(value) if isinstance(value, float) else "-" if value is None else str(value)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
