"""One code path from descriptor to row, and no label in it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor, StageText
from maestroctl.predict import text_features
from maestroctl.predict.features import CATEGORY_NAMES, MODEL_COLUMN, NUMBER_NAMES, FeatureSchema
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.text_cut import MAX_TAIL_CHARS
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


def test_training_serving_and_the_wire_give_the_same_bits(
    model: PredictorModel, jobs: list[TraceJob]
) -> None:
    stages = [stage.seen for job in jobs[:12] for stage in job.stages]
    trained_on = model.builder.matrix(stages)
    for number, stage in enumerate(stages):
        served = model.builder.rows(StageInput.from_json(json.loads(json.dumps(stage.to_json()))))
        assert served[0].tobytes() == trained_on[number].tobytes()


def test_a_live_descriptor_and_the_trace_of_it_give_the_same_bits(model: PredictorModel) -> None:
    rows = make_rows(4)
    history = JobHistory()
    for row, traced in zip(rows, job_from_rows(rows).stages, strict=True):
        system, tail = row["system_text"], row["prompt_tail"]
        descriptor = StageDescriptor(
            stage_id=StageId("s"),
            job_id=JobId("j"),
            candidates=(ModelName(row["model"]),),
            arrival_s=12.5,
            prompt_tokens=PromptTokens(
                -(-len(system) // 4), -(-len(tail) // 4), row["prompt_tokens"]
            ),
            workflow=row["app"],
            role=row["role"],
            position=row["stage_index"],
            invocation_index=row["invocation_index"],
            tools_available=row["tools_available"],
            reasoning=row["topology"],
        )
        half = len(tail) // 2
        text = StageText(system=system, rest=tail[:half], last_user=tail[half:])
        live = build_stage_input(descriptor, text, history)
        assert model.builder.row(live).tobytes() == model.builder.row(traced.seen).tobytes()
        called = row["tool_call"] if row["tools_available"] else None
        history.add(
            EndedStage(row["role"], "", row["prompt_tokens"], row["output_tokens"], called, tail)
        )


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
    stage = build_stage_input(descriptor, StageText(system=text, last_user=text), JobHistory())
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
