"""The picture of `frontier`: one panel per cell, lines for frontiers, marks for baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LINES = {"ours": "C0", "paper form": "C1", "no router": "C2"}
"""Groups that are frontiers over tau, and their colours."""


def draw_cells(figure: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw latency (log scale) against quality.

    Args:
        figure: a matplotlib figure.
        rows: of the experiment.
    """
    kinds = list(dict.fromkeys((row["tasks"], row["pool"]) for row in rows))
    rates = list(dict.fromkeys(row["rate"] for row in rows))
    figure.set_size_inches(4.5 * len(rates), 3.6 * len(kinds))
    axes = figure.subplots(len(kinds), len(rates), squeeze=False)
    for line, kind in zip(axes, kinds, strict=True):
        for panel, rate in zip(line, rates, strict=True):
            of_cell = [r for r in rows if (r["tasks"], r["pool"], r["rate"]) == (*kind, rate)]
            for group, colour in LINES.items():
                _points(panel, [r for r in of_cell if r["group"] == group], group, colour, "o-")
            _points(panel, [r for r in of_cell if r["group"] == "baseline"], "baselines", "k", "x")
            panel.set_title(f"{kind[0]}, {kind[1]}, {rate:g} jobs/s", fontsize="small")
            panel.set_xscale("log")
            panel.set_xlabel("mean job latency, s")
            panel.set_ylabel("right answers, %")
            panel.grid(visible=True, alpha=0.3)
    axes[0][0].legend(fontsize="small")


def _points(
    panel: Any, rows: Sequence[Mapping[str, Any]], label: str, colour: str, style: str
) -> None:
    panel.plot(
        [row["latency_s"].mean for row in rows],
        [row["quality_pct"].mean for row in rows],
        style,
        color=colour,
        label=label,
        markersize=4,
    )
