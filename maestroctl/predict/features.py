"""StageInput to row: the one code path of training and serving.

Recorded jobs sent as requests give the rows of their traces (``test_train_serve_parity``), the
depth apart, which no trace states. The simulator makes no row: it is handed predictions with a
measured error.

A row has three parts: numbers (`NUMBER_NAMES`), categories (`CATEGORY_NAMES`, coded by a
vocabulary that training fixed; NaN = never seen), and pooled text vectors of four parts of the
text. What of the text is read is said in `domain.stage_text`. No function here takes a label.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from maestroctl.predict import text_features
from maestroctl.predict.embedding import FloatArray, WindowEmbedder, pool, split_windows
from maestroctl.predict.history import HistorySnapshot
from maestroctl.predict.stage_input import StageInput

CATEGORY_NAMES: tuple[str, ...] = (
    "workflow",
    "role",
    "model",
    "step",
    "reasoning",
    "prev_role",
    "prev_step",
    "response_format",
)
_HISTORY_NUMBERS: tuple[str, ...] = tuple(
    name
    for name in HistorySnapshot.__slots__
    if name not in ("prev_role", "prev_step", "first_tail", "first_prompt_tokens",
                    "prev_prompt_tokens", "num_stages")
)  # fmt: skip
NUMBER_NAMES: tuple[str, ...] = (
    "position",
    "depth",
    "invocation_index",
    "tools_available",
    "tool_required",
    "max_tokens_log",
    "system_tokens_log",
    "user_tokens_log",
    "prompt_tokens_log",
    "prompt_growth",
    "first_prompt_tokens_log",
    "first_chars",
    "first_digits",
    *_HISTORY_NUMBERS,
    *text_features.NAMES,
)
TEXT_PARTS: tuple[str, ...] = ("system", "tail", "near", "first")
"""System prompt; all of the tail; its last window; the prompt that opened the job."""

MODEL_COLUMN = len(NUMBER_NAMES) + CATEGORY_NAMES.index("model")
"""The one column that differs between the candidates of a stage."""


@dataclass(frozen=True, slots=True)
class FeatureSchema:
    """What training fixed about the row.

    Attributes:
        vocabulary: category name -> value -> code.
        part_dims: text part -> leading dimensions of the encoder that the row keeps.
        reads_text: False for a model fitted on stages that were kept without their text; it
            must not see text when it serves either.
    """

    vocabulary: Mapping[str, Mapping[str, int]]
    part_dims: Mapping[str, int]
    reads_text: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        text = [f"{part}_{k}" for part in TEXT_PARTS for k in range(self.part_dims.get(part, 0))]
        return (*NUMBER_NAMES, *CATEGORY_NAMES, *text)

    @property
    def category_columns(self) -> list[int]:
        """Places of the categories in the row."""
        return list(range(len(NUMBER_NAMES), len(NUMBER_NAMES) + len(CATEGORY_NAMES)))

    @property
    def width(self) -> int:
        """Columns of a row."""
        return (
            len(NUMBER_NAMES)
            + len(CATEGORY_NAMES)
            + sum(self.part_dims.get(part, 0) for part in TEXT_PARTS)
        )

    def code(self, category: str, value: str) -> float:
        """Code of a category's value; NaN when training never saw it."""
        return self.vocabulary[category].get(value, math.nan)

    def to_json(self) -> dict[str, Any]:
        """Plain values; lists keep the order of codes."""
        return {
            "vocabulary": {
                name: sorted(codes, key=codes.__getitem__)
                for name, codes in self.vocabulary.items()
            },
            "part_dims": dict(self.part_dims),
            "reads_text": self.reads_text,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> FeatureSchema:
        """The inverse of `to_json`."""
        return cls(
            {
                name: {value: code for code, value in enumerate(values)}
                for name, values in raw["vocabulary"].items()
            },
            {str(part): int(size) for part, size in raw["part_dims"].items()},
            bool(raw["reads_text"]),
        )


def fit_schema(
    stages: Iterable[StageInput],
    part_dims: Mapping[str, int],
    *,
    min_count: int = 20,
    reads_text: bool = True,
) -> FeatureSchema:
    """Fix the vocabularies: values seen at least `min_count` times, most frequent first."""
    counts = {name: Counter[str]() for name in CATEGORY_NAMES}
    for stage in stages:
        for name, value in zip(
            CATEGORY_NAMES, _categories(stage, stage.candidates[0]), strict=True
        ):
            counts[name][value] += 1
    vocabulary = {}
    for name, counted in counts.items():
        kept = sorted((-n, value) for value, n in counted.items() if n >= min_count)
        vocabulary[name] = {value: code for code, (_, value) in enumerate(kept)}
    return FeatureSchema(vocabulary, dict(part_dims) if reads_text else {}, reads_text)


class RowBuilder:
    """Makes rows under one schema with one embedder."""

    def __init__(self, schema: FeatureSchema, embedder: WindowEmbedder) -> None:
        self.schema = schema
        self.embedder = embedder

    def rows(self, stage: StageInput) -> FloatArray:
        """One row per candidate, (num_candidates, num_features); they differ in the model only."""
        row = self.row(stage)
        rows = np.repeat(row[None, :], len(stage.candidates), axis=0)
        rows[:, MODEL_COLUMN] = [self.schema.code("model", m) for m in stage.candidates]
        return rows

    def row(self, stage: StageInput) -> FloatArray:
        """The row of the first candidate, (num_features,)."""
        schema = self.schema
        if not schema.reads_text:
            stage = stage.without_text()
        values = _numbers(stage)
        values.extend(
            schema.code(name, value)
            for name, value in zip(
                CATEGORY_NAMES, _categories(stage, stage.candidates[0]), strict=True
            )
        )
        head = np.array(values, dtype=np.float32)
        text = self._text(stage)
        return np.concatenate([head, *text]) if text else head

    def matrix(self, stages: Sequence[StageInput]) -> FloatArray:
        """Rows of many stages, first candidates; shape (num_stages, num_features)."""
        out = np.empty((len(stages), self.schema.width), dtype=np.float32)
        for number, stage in enumerate(stages):
            out[number] = self.row(stage)
        return out

    def _text(self, stage: StageInput) -> list[FloatArray]:
        dims = self.schema.part_dims
        if not any(dims.values()):
            return []
        system = split_windows(stage.system)
        tail = split_windows(stage.tail)
        first = split_windows(stage.history.first_tail)[:1] if dims.get("first") else []
        vectors = self.embedder.embed_windows([*system, *tail, *first])
        a, b = len(system), len(system) + len(tail)
        parts = {
            "system": vectors[:a],
            "tail": vectors[a:b],
            "near": vectors[b - 1 : b] if tail else [],
            "first": vectors[b:],
        }
        size = self.embedder.encoder.dimension
        return [pool(parts[p], size)[: dims[p]] for p in TEXT_PARTS if dims.get(p)]


def _categories(stage: StageInput, model: str) -> tuple[str, ...]:
    history = stage.history
    return (
        stage.workflow,
        stage.role,
        model,
        stage.step,
        stage.reasoning,
        history.prev_role,
        history.prev_step,
        stage.response_format,
    )


def _numbers(stage: StageInput) -> list[float]:
    history = stage.history
    first = history.first_tail
    return [
        float(stage.position),
        float(stage.depth),
        float(stage.invocation_index),
        float(stage.tools_available),
        float(tool_is_certain(stage) or 0.0),
        math.nan if stage.max_tokens is None else math.log1p(stage.max_tokens),
        math.log1p(stage.system_tokens),
        math.log1p(stage.user_tokens),
        math.log1p(stage.prompt_tokens),
        stage.prompt_tokens - history.prev_prompt_tokens,
        math.log1p(history.first_prompt_tokens),
        float(len(first)),
        float(text_features.count_digits(first)),
        *(float(getattr(history, name)) for name in _HISTORY_NUMBERS),
        *text_features.surface_features(stage.tail),
    ]


def tool_is_certain(stage: StageInput) -> float | None:
    """0.0 when no tool can be called, 1.0 when one must be, None when it is open."""
    if stage.tools_available <= 0 or stage.tool_choice == "none":
        return 0.0
    return None if stage.tool_choice in ("auto", "") else 1.0
