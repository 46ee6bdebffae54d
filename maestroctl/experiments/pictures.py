"""The picture of an experiment: NAME.png, where matplotlib is installed.

One panel per figure of the plot. With a series column each of its values is a line over x; without
one there is a bar per row. Half of the 95 % interval is drawn where there is one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from maestroctl.experiments.harness import Estimate, Experiment, Plot

PANEL_INCHES = (4.5, 3.6)


def draw(experiment: Experiment) -> bytes | None:
    """The picture as PNG; None when matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained", dpi=120)
    if callable(experiment.plot):
        experiment.plot(figure)
    else:
        _draw_panels(figure, experiment.plot, experiment.rows)
        figure.suptitle(experiment.title)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _draw_panels(figure: Any, plot: Plot, rows: Sequence[Mapping[str, Any]]) -> None:
    """A row of panels per value of the facet column."""
    facets = list(dict.fromkeys(row[plot.facet] for row in rows)) if plot.facet else [None]
    width, height = PANEL_INCHES
    figure.set_size_inches(width * len(plot.panels), height * len(facets))
    grid = figure.subplots(len(facets), len(plot.panels), squeeze=False)
    for line, facet in zip(grid, facets, strict=True):
        of_facet = [row for row in rows if plot.facet is None or row[plot.facet] == facet]
        for axes, panel in zip(line, plot.panels, strict=True):
            known = [row for row in of_facet if row[panel] is not None]
            if plot.series is None:
                _draw_bars(axes, plot.x, panel, known)
            else:
                _draw_lines(axes, plot.x, plot.series, panel, known)
            axes.set_xlabel(plot.x if facet is None else f"{plot.x} ({plot.facet} {facet})")
            axes.set_ylabel(panel)
            axes.grid(visible=True, alpha=0.3)
    if plot.series is not None:
        grid[0][-1].legend(fontsize="small")


def _draw_lines(
    axes: Any, x: str, series: str, panel: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    for name in dict.fromkeys(str(row[series]) for row in rows):
        of_name = [row for row in rows if str(row[series]) == name]
        axes.errorbar(
            [row[x] for row in of_name],
            [_mean(row[panel]) for row in of_name],
            [_half(row[panel]) for row in of_name],
            marker="o",
            markersize=4,
            capsize=2,
            label=name,
        )


def _draw_bars(axes: Any, x: str, panel: str, rows: Sequence[Mapping[str, Any]]) -> None:
    axes.bar(
        [str(row[x]) for row in rows],
        [_mean(row[panel]) for row in rows],
        yerr=[_half(row[panel]) for row in rows],
        capsize=2,
    )
    axes.tick_params(axis="x", rotation=45)


def _mean(value: Any) -> float:
    return value.mean if isinstance(value, Estimate) else float(value)


def _half(value: Any) -> float:
    half = value.half_width if isinstance(value, Estimate) else None
    return half or 0.0
