"""Stage to row, and no label in it. What live requests become: `test_train_serve_parity`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import MAX_TAIL_CHARS, StageText
from maestroctl.predict import text_features
from maestroctl.predict.features import CATEGORY_NAMES, MODEL_COLUMN, NUMBER_NAMES, FeatureSchema
from maestroctl.predict.history import JobHistory
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.traces import TraceJob, job_from_rows
from tests.unit.predict.conftest import make_rows

LABELS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("output_tokens", lambda row: row["output_tokens"] * 7 + 1),
    ("tool_call", lambda row: not row["tool_call"]),
    ("job_success", lambda row: not row["job_success"]),
    ("edits", lambda _: 9),
    ("t_end_s", lambda _: 1234.0),
    ("t_start_s", lambda _: 1234.0),
    ("tokens_src", lambda _: "unknown"),
]


@pytest.mark.parametrize(("field", "change"), LABELS, ids=[name for name, _ in LABELS])
@pytest.mark.parametrize("place", range(5))
def test_a_label_never_reaches_the_row_of_its_own_stage_or_an_earlier_one(
    model: PredictorModel, field: str, change: Callable[[dict[str, Any]], Any], place: int
) -> None:
    rows = make_rows(3)
    changed = make_rows(3)
    changed[place][field] = change(changed[place])
    for before, after in zip(
        job_from_rows(rows).stages[: place + 1],
        job_from_rows(changed).stages[: place + 1],
        strict=True,
    ):
        one, other = model.builder.row(before.seen), model.builder.row(after.seen)
        assert one.tobytes() == other.tobytes()


def test_a_matrix_and_a_row_that_crossed_the_wire_give_the_same_bits(
    model: PredictorModel, jobs: list[TraceJob]
) -> None:
    stages = [stage.seen for job in jobs[:12] for stage in job.stages]
    trained_on = model.builder.matrix(stages)
    for number, stage in enumerate(stages):
        served = model.builder.rows(StageInput.from_json(json.loads(json.dumps(stage.to_json()))))
        assert served[0].tobytes() == trained_on[number].tobytes()


def test_rows_of_candidates_differ_in_the_model_only(
    model: PredictorModel, jobs: list[TraceJob]
) -> None:
    stage = replace(jobs[0].stages[1].seen, candidates=("small", "large", "never seen"))
    rows = model.builder.rows(stage)
    assert rows[0, MODEL_COLUMN] != rows[1, MODEL_COLUMN]
    assert math.isnan(rows[2, MODEL_COLUMN])
    rest = np.delete(rows, MODEL_COLUMN, axis=1)
    assert rest[0].tobytes() == rest[1].tobytes() == rest[2].tobytes()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\ud800 lone surrogate",
        "日本語のテキスト " * 50,
        "🙂" * 3000,
        "a" * 800_000,
        "\x00\n\r\t",
    ],
    ids=["empty", "surrogate", "japanese", "emoji", "200k-tokens", "control"],
)
def test_any_text_gives_a_finite_prediction(model: PredictorModel, text: str) -> None:
    descriptor = StageDescriptor(
        stage_id=StageId("s"),
        job_id=JobId("j"),
        candidates=(ModelName("unheard of"),),
        arrival_s=0.0,
        prompt_tokens=PromptTokens(0, 0, len(text) // 4),
        workflow="no such workflow",
        role="röle",
        tools_available=2,
    )
    stage = build_stage_input(descriptor, StageText(system=text, tail=text), JobHistory())
    assert len(stage.tail) <= MAX_TAIL_CHARS
    figures = model.predict([stage])[0].figures["unheard of"]
    assert 0 <= figures.q50 <= figures.q90 < math.inf
    assert figures.total >= figures.q50


def test_unknown_names_get_no_code(model: PredictorModel) -> None:
    row = model.builder.row(StageInput(candidates=("x",), workflow="?", role="?", step="?"))
    codes = row[len(NUMBER_NAMES) : len(NUMBER_NAMES) + len(CATEGORY_NAMES)]
    assert np.isnan(codes[:4]).all()


def test_a_schema_survives_json(model: PredictorModel) -> None:
    schema = model.builder.schema
    again = FeatureSchema.from_json(json.loads(json.dumps(schema.to_json())))
    assert again == schema
    assert len(schema.names) == schema.width


def test_surface_features_match_their_names() -> None:
    assert len(text_features.surface_features("Thought 1: look?")) == len(text_features.NAMES)
