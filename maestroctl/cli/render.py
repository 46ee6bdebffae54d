"""Tables. Every one fits 80 columns; wider terminals show more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from maestroctl.domain.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from maestroctl.cli.checks.check import Check

_STATUS_STYLE = {
    "active": "bold green",
    "idle": "green",
    "sleeping": "blue",
    "suspended": "blue",
    "stopped": "dim",
    "failed": "bold red",
    "finished": "green",
    "running": "bold green",
    "cancelled": "yellow",
    "interrupted": "yellow",
    "ok": "green",
    "warn": "yellow",
    "missing": "bold red",
}


def table(*columns: str | tuple[str, str]) -> Table:
    """An empty table; a column is its heading, or heading and alignment."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        name, justify = (column, "left") if isinstance(column, str) else column
        # Columns on the right hold figures; one that is cut is another figure, so names give way.
        figures = justify == "right"
        made.add_column(name, justify=justify, overflow="fold", no_wrap=figures)  # type: ignore[arg-type]
    return made


def titled(title: str, made: Table) -> Group:
    """A table under a line of its own: Rich would fold a title at the width of the table."""
    return Group("", Text(title, style="bold"), made)


def status_text(status: str) -> Text:
    """A state in its colour."""
    return Text(status, style=_STATUS_STYLE.get(status, "yellow"))


def seconds_text(value: float | None) -> str:
    """A duration, or a dash."""
    return "–" if value is None else format_seconds(value)


def bytes_text(value: float | None) -> str:
    """A size, or a dash."""
    return "–" if value is None else format_bytes(value)


def time_text(unix_s: float | None) -> str:
    """Local time of day, with the date when it was not today."""
    if unix_s is None:
        return "–"
    moment = datetime.fromtimestamp(unix_s).astimezone()
    today = datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M")


def values_table(values: Iterable[tuple[str, str, str]]) -> Table:
    """`config show`: key, value, where it came from."""
    made = table("KEY", "VALUE", "FROM")
    for key, value, origin in values:
        made.add_row(
            Text(key), Text(value), Text(origin, style="dim" if origin == "default" else "")
        )
    return made


def model_list_table(models: Iterable[Mapping[str, Any]]) -> Table:
    """`models list`: models and groups as clients see them."""
    made = table("NAME", "KIND", "STATE", ("LENGTH", "right"), "ALSO")
    for model in models:
        extra = model.get("maestro", {})
        state = extra.get("state")
        members = extra.get("models") or extra.get("aliases") or ()
        made.add_row(
            Text(model["id"]),
            extra.get("kind", "model"),
            status_text(str(state)) if state else "–",
            str(model.get("max_model_len") or "–"),
            Text(", ".join(members) or "–"),
        )
    return made


def checks_table(checks: Iterable[Check]) -> Table:
    """`doctor`: one line per check, the fix below it."""
    made = table("", "CHECK", "FOUND")
    area = ""
    for check in checks:
        if area and check.area != area:
            made.add_section()
        area = check.area
        found = Text(check.found)
        if check.fix:
            found.append(f"\n-> {check.fix}", style="bold")
        made.add_row(status_text(check.level), Text(check.name), found)
    return made


def models_table(models: Iterable[Mapping[str, Any]]) -> Table:
    """`ps`: model × node."""
    made = table(
        "MODEL", "NODE", "STATE", ("WEIGHTS", "right"), ("KV", "right"), ("KEPT", "right"),
        ("RUN", "right"), ("WAIT", "right"), ("IDLE", "right"),
    )  # fmt: skip
    for row in models:
        state = status_text(row["status"])
        if row.get("pinned"):
            state.append(" pinned", style="magenta")
        made.add_row(
            Text(row["model"]),
            row["node"],
            state,
            bytes_text(row["weights_bytes"] or None),
            bytes_text(row["kv_limit_bytes"] or None),
            kept_text(row["kept_slots"], row["slots"]),
            str(row["num_running"]),
            str(row["num_waiting"]),
            seconds_text(row["idle_s"]),
        )
    return made


def kept_text(kept: int, slots: int) -> str:
    """Slots that are kept for interactive stages, of how many; a model with no engine has none."""
    return f"{kept} of {slots}" if kept and slots else "–"


def rtt_text(rtt_s: float | None) -> str:
    """A round trip in milliseconds; a dash before the first is measured."""
    return "–" if rtt_s is None else f"{rtt_s * 1e3:.1f} ms"


def devices_table(devices: Iterable[Mapping[str, Any]]) -> Table:
    """Memory of each device as booked and as read."""
    made = table(
        "NODE", ("RTT", "right"), "DEVICE", ("BUDGET", "right"), ("BOOKED", "right"),
        ("USED", "right"),
    )  # fmt: skip
    for row in devices:
        made.add_row(
            row["node"],
            rtt_text(row.get("rtt_s")),
            row["device"],
            bytes_text(row["budget_bytes"]),
            bytes_text(row["booked_bytes"]),
            bytes_text(row["used_bytes"]),
        )
    return made


def jobs_table(jobs: Iterable[Mapping[str, Any]]) -> Table:
    """`jobs`, newest first."""
    made = table("JOB", "WORKFLOW", "CLASS", "STATUS", "SUBMITTED", ("TOOK", "right"))
    for job in jobs:
        ended, began = job["finished_at"], job["submitted_at"]
        made.add_row(
            job["job_id"],
            Text(job["workflow"] or "–"),
            job["class"],
            status_text(job["status"]),
            time_text(began),
            seconds_text(None if ended is None else ended - began),
        )
    return made


def step_label(step: Mapping[str, Any]) -> str:
    """``code``, ``code #2`` for a second visit, ``note [3]`` for an item of several."""
    visit = f" #{step['visit']}" if step["visit"] > 1 else ""
    item = f" [{step['item'] + 1}]" if step["num_items"] > 1 else ""
    return f"{step['step']}{visit}{item}"


def stages_table(stages: Iterable[Mapping[str, Any]], *, with_model: bool = True) -> Table:
    """Stages of a job: what each waited for and what it cost."""
    made = table(
        "STAGE", "ROLE", *(["MODEL"] if with_model else []), ("WAIT", "right"),
        ("WAKE/START", "right"), ("FIRST", "right"), ("TOKENS", "right"), ("TOTAL", "right"),
    )  # fmt: skip
    for stage in stages:
        activation = stage["activation"]
        cells = [
            stage["step"] or "request",
            stage["role"],
            *([stage["model"]] if with_model else []),
            seconds_text(stage["wait_s"]),
            f"{activation} {format_seconds(stage['activation_s'])}" if activation else "–",
            seconds_text(stage["ttft_s"]),
            "–" if stage["output_tokens"] is None else str(stage["output_tokens"]),
            seconds_text(stage["total_s"]),
        ]
        outcome = stage["outcome"]
        made.add_row(*cells, style=None if outcome in (None, "finished") else "red")
    return made
