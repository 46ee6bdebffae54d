"""Stored observations become the stages that the predictors saw live."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import numpy as np

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.stage import PromptTokens, StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.own_history import own_history
from maestroctl.predict.refit import refit_from_history
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.stage_table import make_table
from maestroctl.predict.train import TrainConfig
from maestroctl.store.rows import ObservationRow

SMALL, LARGE = ModelName("small"), ModelName("large")


def _stage(job: str, position: int) -> StageDescriptor:
    return StageDescriptor(
        stage_id=StageId(f"{job}/{position}"),
        job_id=JobId(job),
        candidates=(SMALL, LARGE),
        arrival_s=float(position),
        prompt_tokens=PromptTokens(system=3, user=7 + position, full=10 + position),
        workflow="shop",
        step=f"step-{position % 3}",
        role="agent" if position % 2 == 0 else "user",
        position=position,
        invocation_index=position // 2,
        tools_available=position % 2,
    )


def _row(
    stage: StageDescriptor, at: float, tokens: int, *, told: float = 50.0, censored: bool = False
) -> ObservationRow:
    return ObservationRow(
        stage_id=stage.stage_id,
        at=at,
        workflow=stage.workflow,
        step=stage.step,
        role=stage.role,
        model=LARGE,
        features_json=msgspec.json.encode(stage).decode(),
        predicted_q50=told,
        predicted_q90=2 * told,
        predicted_p_tool=0.5,
        source="model",
        output_tokens=tokens,
        tool_called=bool(tokens % 2),
        censored=censored,
    )


def _ended(stage: StageDescriptor, tokens: int) -> EndedStage:
    tail = f"secret {stage.position}"
    full = stage.prompt_tokens.full
    return EndedStage(
        stage.role, stage.step, full, tokens, stage.tools_available, bool(tokens % 2), tail
    )


def _live(stage: StageDescriptor, history: JobHistory) -> StageInput:
    text = StageText(system="secret", tail=f"secret {stage.position}")
    served = replace(stage, candidates=(LARGE,))
    return build_stage_input(served, text, history).without_text()


def test_stages_equal_what_was_seen_live_whatever_overlapped() -> None:
    rng = random.Random(4)
    for _ in range(30):
        stages = [_stage("job", position) for position in range(8)]
        arrived = {stage.stage_id: 100.0 + rng.randrange(40) for stage in stages}
        ends = {stage.stage_id: arrived[stage.stage_id] + rng.uniform(0.5, 20) for stage in stages}
        tokens = {stage.stage_id: rng.randrange(1, 400) for stage in stages}
        cut = {stage.stage_id for stage in stages if rng.random() < 0.2}
        seen_live = {}
        for stage in stages:
            history = JobHistory()
            for other in sorted(stages, key=lambda one: ends[one.stage_id]):
                over = ends[other.stage_id] <= arrived[stage.stage_id]
                if over and other.stage_id not in cut:
                    history.add(_ended(other, tokens[other.stage_id]))
            seen_live[stage.position] = repr(_live(stage, history).to_json())
        rows = [
            _row(s, ends[s.stage_id], tokens[s.stage_id], censored=s.stage_id in cut)
            for s in stages
        ]
        rng.shuffle(rows)
        (job,) = own_history(rows, arrived, ["job"]).jobs
        assert {s.seen.position: repr(s.seen.to_json()) for s in job.stages} == seen_live


def test_a_cut_stage_has_no_label() -> None:
    stage = _stage("job", 0)
    found = own_history([_row(stage, 2.0, 9, censored=True)], {stage.stage_id: 1.0}, ["job"])
    assert found.jobs[0].stages[0].output_tokens is None
    assert found.jobs[0].stages[0].tool_called is None


def test_a_job_that_was_cut_says_how_long_its_stages_are_and_not_how_long_jobs() -> None:
    stages = [_stage(name, at) for name in ("whole", "cut") for at in range(2)]
    rows = [_row(stage, 2.0 + stage.position, 7) for stage in stages]
    arrived = {stage.stage_id: 1.0 + stage.position for stage in stages}
    found = own_history(rows, arrived, ["whole", "cut"], {"cut"})
    assert [job.is_complete for job in found.jobs] == [job.job == "whole" for job in found.jobs]
    table = make_table(found.jobs)
    assert not np.isnan(table.tokens).any()
    assert int(np.isnan(table.remaining).sum()) == 2


def test_jobs_are_ordered_by_their_end_and_open_ones_left_out() -> None:
    stages = [_stage(name, 0) for name in ("late", "early", "open")]
    rows = [_row(s, at, 5, told=at) for s, at in zip(stages, (9.0, 4.0, 5.0), strict=True)]
    found = own_history(rows, {s.stage_id: 1.0 for s in stages}, ["early", "late"])
    assert [job.job for job in found.jobs] == ["early", "late"]
    assert found.told_q50 == ((4.0,), (9.0,))


def test_rows_of_another_version_are_left_out_and_counted() -> None:
    stage = _stage("job", 0)
    row = replace(_row(stage, 2.0, 9), features_json='{"other": 1}')
    found = own_history([row], {stage.stage_id: 1.0}, ["job"])
    assert (found.jobs, found.unreadable) == ((), 1)


def test_a_refit_from_rows_is_kept_only_when_better(
    model: PredictorModel, config: TrainConfig
) -> None:
    rng = random.Random(1)
    for told, better in ((5000.0, True), (None, False)):
        rows, arrived = [], {}
        for number in range(50):
            for position in range(4):
                stage = _stage(f"job-{number}", position)
                tokens = int((30 if position % 2 else 120) * rng.uniform(0.9, 1.1))
                arrived[stage.stage_id] = 10.0 * number + position
                at = arrived[stage.stage_id] + 0.5
                rows.append(_row(stage, at, tokens, told=float(tokens) if told is None else told))
        history = own_history(rows, arrived, {f"job-{number}" for number in range(50)})
        result = refit_from_history(history, model.builder.embedder.encoder, config)
        assert (result.model is not None) == better
        assert (result.jobs, result.stages) == (50, 200)
        if result.model is not None:
            assert not result.model.builder.schema.reads_text
