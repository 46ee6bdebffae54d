"""Writes what an experiment came to: NAME.json, NAME.md and, with matplotlib, NAME.png."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from maestroctl.experiments.harness import Estimate, Experiment


def write(experiment: Experiment, folder: Path) -> list[Path]:
    """Write all forms; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / experiment.name
    paths = [stem.with_suffix(".json"), stem.with_suffix(".md")]
    paths[0].write_text(json.dumps(document(experiment), indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(markdown(experiment), encoding="utf-8")
    picture = stem.with_suffix(".png")
    wanted = experiment.plot is not None or experiment.figure is not None
    if wanted and draw(experiment, picture):
        paths.append(picture)
    return paths


def document(experiment: Experiment) -> dict[str, Any]:
    """Everything, ready for JSON."""
    fields = {f.name: getattr(experiment, f.name) for f in dataclasses.fields(experiment)}
    del fields["plot"], fields["figure"]
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
    lines += [f"- {name}: {show(value)}" for name, value in experiment.headline.items()]
    if experiment.notes:
        lines += ["", "## Notes", "", *(f"- {note}" for note in experiment.notes)]
    return "\n".join(lines) + "\n"


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


def draw(experiment: Experiment, path: Path) -> bool:
    """One panel per y column; False when matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib.figure import Figure

    if experiment.figure is not None:
        whole = Figure(layout="constrained")
        experiment.figure(whole)
        whole.savefig(path, dpi=120)
        return True
    assert experiment.plot is not None
    x, series, panels = experiment.plot
    figure = Figure(figsize=(5.0 * len(panels), 4.0), layout="constrained")
    names = list(dict.fromkeys(str(row[series]) for row in experiment.rows))
    for number, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for name in names:
            rows = [r for r in experiment.rows if str(r[series]) == name and r[panel] is not None]
            values = [_mean(row[panel]) for row in rows]
            axes.plot([row[x] for row in rows], values, marker="o", label=name)
        axes.set_xlabel(x)
        axes.set_ylabel(panel)
        axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.suptitle(experiment.title)
    figure.savefig(path, dpi=120)
    return True


def _mean(value: Any) -> float:
    return value.mean if isinstance(value, Estimate) else float(value)
