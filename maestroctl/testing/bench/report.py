"""What a benchmark says at its end: a table for people, and one line of JSON for programs."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 80
"""Columns of a terminal that nobody has widened."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        name: what was measured.
        value: the figure with its unit and spread.
        target: what it should be; empty = it is there to be read.
        met: whether it is; None without a target, or when it could not be measured.
    """

    name: str
    value: str
    target: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """``met``, ``MISSED``, ``not measured`` or nothing."""
        if not self.target:
            return ""
        return {True: "met", False: "MISSED", None: "not measured"}[self.met]


@dataclass(frozen=True, slots=True)
class Section:
    """Rows under one heading."""

    heading: str
    rows: tuple[Row, ...]


def render(title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """The table, in `WIDTH` columns where its figures allow that; one line per target more."""
    lines = [title, "=" * len(title)]
    for section in sections:
        names = max((len(row.name) for row in section.rows), default=0)
        lines += ["", section.heading]
        for row in section.rows:
            lines.append(f"  {row.name:<{names}}  {row.value}".rstrip())
            if row.target:
                lines.append(f"  {'':<{names}}    target {row.target}: {row.verdict}")
    for note in notes:
        lines += ["", *textwrap.wrap(note, WIDTH)]
    return "\n".join(lines)


def summary_line(sections: Sequence[Section]) -> str:
    """How many targets were met, and which were not."""
    judged = [row for section in sections for row in section.rows if row.target]
    met = sum(row.met is True for row in judged)
    missed = ", ".join(row.name for row in judged if row.met is False)
    unknown = ", ".join(row.name for row in judged if row.met is None)
    line = f"{met} of {len(judged)} targets met"
    line += f"; missed: {missed}" if missed else ""
    return textwrap.fill(line + (f"; not measured: {unknown}" if unknown else ""), WIDTH)


def to_json_line(figures: Mapping[str, Any]) -> str:
    """One line of JSON; what is no number becomes null, and figures keep six decimals."""
    return json.dumps(_plain(figures), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value
