"""Tables of the prediction commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from maestroctl.cli.render import table, titled

_GROUPS = {
    "step": "workflow, role and step, this model",
    "role": "workflow and role",
    "model": "this model",
    "fleet": "the fleet",
}
_SHOWN = 8
"""Rows of a list on the terminal."""


def evaluation_table(report: Mapping[str, Any]) -> Group:
    """Pooled figures first, then one row per application."""
    names = ("MAE", "R²", "R² log", "tool loss", "τ total", "q90 cover")
    made = table("APPLICATION", *((name, "right") for name in names))
    for app, figures in {"all": report, **report["per_app"]}.items():
        length = figures["length"]
        made.add_row(
            app,
            *(_number(length[key]) for key in ("mae", "r2", "r2_log")),
            _number(figures["tool_intent"]["log_loss"]),
            _number(figures["total"]["kendall_tau"]),
            _number(figures["coverage"]["q90"]),
        )
    return titled(f"{report['stages']} stages of {report['jobs']} jobs", made)


def prediction_tables(said: Mapping[str, Any]) -> list[Group]:
    """What is predicted per candidate, what moved the median, what was seen of its like."""
    final = said["final"]
    figures = ("Q50", "Q90", "TOTAL", "CONFIDENCE")
    answer = (
        f"Output {final['q50']:.0f} tokens (90 % under {final['q90']:.0f}),"
        f" tool call {final['p_tool']:.0%}"
    )
    per_model = table("MODEL", *((name, "right") for name in figures))
    for model, figures in said["candidates"].items():
        per_model.add_row(
            model,
            _number(figures["q50"]),
            _number(figures["q90"]),
            _number(final["total_tokens"].get(model)),
            _number(final["confidence"].get(model)),
        )
    reasons = table("FEATURE", "VALUE", ("FACTOR", "right"))
    for moved in said["moved_by"]:
        value = moved["value"]
        shown = value if isinstance(value, str) else _number(value)
        reasons.add_row(moved["feature"], shown, f"× {moved['factor']:.2f}")
    usual = f"Usual length {said['usual']:.0f} tokens; what moved the trained model from there"
    tables = [titled(answer, per_model), titled(usual, reasons)]
    if said["history"]:
        tables.append(titled("What this fleet has seen, nearest first", _history(said["history"])))
    return tables


def _history(groups: Sequence[Mapping[str, Any]]) -> Table:
    made = table("CALLS OF", *((name, "right") for name in ("SEEN", "Q50", "Q90")))
    for group in groups:
        figures = (_number(group["q50"]), _number(group["q90"]))
        made.add_row(_GROUPS[group["group"]], str(group["stages"]), *figures)
    return made


def addition_lines(done: Mapping[str, Any]) -> list[str]:
    """What was added to an artifact, how good it is beside the base rate, how it is used."""
    held = done["held_out"]
    place = Path(done["path"]).absolute()  # a relative one would start at the fleet file's folder
    verdict = "better than" if held["log_loss"] < held["log_loss_base_rate"] else "no better than"
    return [
        f"{done['path']}: {done['model']} added, right in {held['rate']:.1%}"
        f" of {done['outcomes']} outcomes",
        f"held out, {verdict} that rate: log loss {_number(held['log_loss'])}"
        f" (rate {_number(held['log_loss_base_rate'])}), Brier {_number(held['brier'])}"
        f" (rate {_number(held['brier_base_rate'])}), AUC {_number(held['auc'])}",
        f"{done['bytes']} bytes, digest {done['digest']}",
        f'`serve` asks it from its next start with [predictor] artifact = "{place}"',
    ]


def status_tables(document: Mapping[str, Any]) -> list[Table | Group]:
    """The figures of the status document, then what went wrong most, each kind in a table."""
    figures = table("PART", "FIGURE", "VALUE")
    lists: list[Group] = []
    for number, (part, values) in enumerate(document.items()):
        if number:
            figures.add_section()
        for name, value in values.items():
            if isinstance(value, list) and value and isinstance(value[0], Mapping):
                lists.append(_rows_table(name, value))
            else:
                figures.add_row(part, name, _plain(value))
    return [figures, *lists]


def _rows_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Group:
    """One row per entry, the keys of the first on top."""
    columns = (_column(name, value) for name, value in rows[0].items())
    made = table(*columns)
    for row in rows[:_SHOWN]:
        made.add_row(*(_plain(row.get(name)) for name in rows[0]))
    if len(rows) > _SHOWN:
        made.caption = f"and {len(rows) - _SHOWN} more; --json has all"
        made.caption_justify = "left"
    return titled(title.replace("_", " "), made)


def _column(name: str, value: Any) -> str | tuple[str, str]:
    heading = name.replace("_", " ").upper()
    return heading if isinstance(value, str) else (heading, "right")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(own)}" for name, own in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "–"
    return _number(value) if isinstance(value, float) else "–" if value is None else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
