"""Writes what an experiment came to: NAME.json, NAME.md and, with matplotlib, NAME.png."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from maestroctl.config.whole_file import write_whole
from maestroctl.experiments.harness import Estimate, Experiment
from maestroctl.experiments.pictures import draw


def write(experiment: Experiment, folder: Path) -> list[Path]:
    """Write all forms, each file as a whole; returns the files."""
    forms: list[tuple[str, str | bytes | None]] = [
        ("json", json.dumps(document(experiment), indent=1) + "\n"),
        ("md", markdown(experiment)),
        ("png", draw(experiment)),
    ]
    paths = []
    for suffix, content in forms:
        if content is not None:
            paths.append(folder / f"{experiment.name}.{suffix}")
            write_whole(paths[-1], content)
    return paths


def document(experiment: Experiment) -> dict[str, Any]:
    """Everything, ready for JSON."""
    fields = {f.name: getattr(experiment, f.name) for f in dataclasses.fields(experiment)}
    del fields["plot"]
    plain: dict[str, Any] = _plain(fields)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return value.document()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def markdown(experiment: Experiment) -> str:
    """A report of one page."""
    lines = [f"# {experiment.title}", ""]
    if experiment.paper:
        lines += [f"The paper: {experiment.paper}", ""]
    lines += [f"- {name}: {show(value)}" for name, value in experiment.parameters.items()]
    lines += ["", "| " + " | ".join(experiment.columns) + " |"]
    lines.append("|" + " --- |" * len(experiment.columns))
    for row in experiment.rows:
        lines.append("| " + " | ".join(show(row.get(c)) for c in experiment.columns) + " |")
    lines += ["", "## Headline", ""]
    lines += [f"- {name}: {value}" for name, value in headline_lines(experiment.headline)]
    if experiment.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in experiment.notes)]
    return "\n".join(lines) + "\n"


def headline_lines(value: Any, name: str = "") -> list[tuple[str, str]]:
    """(name, figure) of every figure, those of tables inside the headline one by one."""
    if not isinstance(value, dict):
        return [(name, show(value))]
    return [
        line
        for key, part in value.items()
        for line in headline_lines(part, f"{name}, {key}" if name else str(key))
    ]


def show(value: Any) -> str:
    """A cell."""
    if value is None:
        return "–"
    if isinstance(value, Estimate):
        half = "" if value.half_width is None else f" ± {value.half_width:.2g}"
        return f"{value.mean:.4g}{half}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "; ".join(f"{name}: {show(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(show(item) for item in value)
    return str(value)
