"""Reads the correctness tables the router learns from: parquet of (question, model, correct)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
        ConfigError: no table there.
        ArtifactMissing: pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as exc:
        raise ArtifactMissing(
            "reading correctness tables needs pyarrow", hint="pip install 'maestroctl[predict]'"
        ) from exc
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ConfigError("no correctness table found", file=str(folder))
    rows: list[RoutingRow] = []
    for path in files:
        table = parquet.read_table(path).to_pydict()
        unknown = [None] * len(table["model"])
        names = ("dataset", "question_text", "model", "correct", "output_tokens")
        columns = (table.get(name, unknown) for name in names)
        rows.extend(
            RoutingRow(dataset, question or "", model, float(correct), tokens)
            for dataset, question, model, correct, tokens in zip(*columns, strict=True)
            if model is not None and correct is not None
        )
    return rows


def fold_of_item(row: RoutingRow, num_folds: int) -> int:
    """Stable fold of a question."""
    return fold_of_task(row.item_key, num_folds)
