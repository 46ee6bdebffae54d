"""Reads the correctness tables the router learns from: rows of (question, model, correct)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.errors import ArtifactMissing, ConfigError
from maestroctl.predict.traces import fold_of_task


@dataclass(frozen=True, slots=True)
class RoutingRow:
    """One model's answer to one question."""

    dataset: str
    question: str
    model: str
    correct: float
    output_tokens: int | None = None

    @property
    def item_key(self) -> str:
        """The same for one question in every table, so that it stays on one side of a split."""
        return " ".join(self.question.split())[:300].lower()


def load_routing_rows(folder: Path) -> list[RoutingRow]:
    """Every row of every ``*.parquet`` of a folder.

    Raises:
        ConfigError: no table there, or one that cannot be read.
        ArtifactMissing: pyarrow is not installed.
    """
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ConfigError("no correctness table found", file=str(folder))
    return [row for path in files for row in _read_table(path)]


def load_outcomes(path: Path, model: str) -> list[RoutingRow]:
    """One model's answers to questions: a correctness table, or lines of JSON.

    A line is ``{"question_text": "...", "correct": 0 or 1}``. One that names a ``model`` counts
    only if it is this one; so do the rows of a table.

    Raises:
        ConfigError: the file cannot be read, a line is something else, or nothing in it is about
            the model.
        ArtifactMissing: pyarrow, which tables need, is not installed.
    """
    if not path.is_file():
        raise ConfigError("no such file", file=str(path))
    rows = _read_table(path) if path.suffix == ".parquet" else list(_read_lines(path, model))
    own = [row for row in rows if row.model == model]
    if not own:
        others = sorted({row.model for row in rows})
        hint = f"there are outcomes of {', '.join(others)}" if others else None
        raise ConfigError(f"no outcome of {model!r} in it", file=str(path), hint=hint)
    if odd := [row.correct for row in own if row.correct not in (0.0, 1.0)]:
        raise ConfigError(f"`correct` is {odd[0]:g}, but must be 0 or 1", file=str(path))
    return own


def _read_table(path: Path) -> list[RoutingRow]:
    try:
        from pyarrow import parquet
    except ImportError as exc:
        raise ArtifactMissing(
            "reading correctness tables needs pyarrow", hint="pip install 'maestroctl[predict]'"
        ) from exc
    try:
        table = parquet.read_table(path).to_pydict()
        unknown = [None] * len(table["model"])
        names = ("dataset", "question_text", "model", "correct", "output_tokens")
        columns = (table.get(name, unknown) for name in names)
        return [
            RoutingRow(dataset or "", question or "", model, float(correct), tokens)
            for dataset, question, model, correct, tokens in zip(*columns, strict=True)
            if model is not None and correct is not None
        ]
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise ConfigError(f"not a correctness table: {exc!r}", file=str(path)) from exc


def _read_lines(path: Path, model: str) -> Iterator[RoutingRow]:
    """Rows of lines of JSON; those that name no model are of `model`."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", file=str(path)) from exc
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _row_of(json.loads(line), model)
            except (ValueError, TypeError, KeyError, AttributeError) as exc:
                raise ConfigError(
                    f"not an outcome: {exc!r}",
                    file=str(path),
                    line=number,
                    hint='a line is {"question_text": "...", "correct": 0 or 1}',
                ) from exc


def _row_of(line: Mapping[str, Any], model: str) -> RoutingRow:
    question = line["question_text"]
    if not isinstance(question, str):
        raise TypeError("question_text is not a text")
    return RoutingRow("", question, str(line.get("model", model)), float(line["correct"]))


def fold_of_item(row: RoutingRow, num_folds: int) -> int:
    """Stable fold of a question."""
    return fold_of_task(row.item_key, num_folds)
