"""A made-up history of a fleet, written to its state database before it is served."""

from __future__ import annotations

import random

import msgspec

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.domain.stage import PromptTokens, ServiceClass, StageDescriptor
from maestroctl.store.database import Store
from maestroctl.store.rows import JobRow, ObservationRow, Row, StageAttemptRow

BEGAN_AT = 1_700_000_000.0
_LENGTHS = (300, 20, 90)


def write_history(
    url: str, num_jobs: int, *, told: float = 2000.0, model: str = "alpha", first: int = 0
) -> int:
    """Jobs of three stages each, whose lengths depend on the role; how many stages.

    Args:
        told: the median that all of them were told.
    """
    rows: list[Row] = []
    for number in range(first, first + num_jobs):
        rows += _job(number, told, model)
    with Store.open(url) as store:
        store.commit(rows)
    return num_jobs * len(_LENGTHS)


def _job(number: int, told: float, model: str) -> list[Row]:
    rng, job_id, at = random.Random(number), f"made/{number}", BEGAN_AT + 10 * number
    rows: list[Row] = [
        JobRow(
            job_id=job_id,
            submitted_at=at,
            workflow="made",
            service_class=ServiceClass.BATCH,
            status=JobStatus.FINISHED,
            finished_at=at + 9,
        )
    ]
    for position, length in enumerate(_LENGTHS):
        stage = StageDescriptor(
            stage_id=StageId(f"{job_id}/{position}"),
            job_id=JobId(job_id),
            candidates=(ModelName(model),),
            arrival_s=0.0,
            prompt_tokens=PromptTokens(system=5, user=20, full=25 + 10 * position),
            workflow="made",
            role=f"role{position}",
            position=position,
        )
        rows.append(attempt_row(stage, at + 2 * position))
        tokens = int(length * rng.uniform(0.8, 1.2))
        rows.append(_observation(stage, at + 2 * position + 1, tokens, told))
    return rows


def attempt_row(stage: StageDescriptor, at: float) -> StageAttemptRow:
    """The stage was served by its first candidate and took a second."""
    return StageAttemptRow(
        stage_id=stage.stage_id,
        job_id=stage.job_id,
        attempt=1,
        arrived_at=at,
        step=stage.step,
        role=stage.role,
        model=stage.candidates[0],
        node="local",
        service_class=stage.service_class,
        outcome=Outcome.FINISHED,
        ended_at=at + 1,
    )


def _observation(stage: StageDescriptor, at: float, tokens: int, told: float) -> ObservationRow:
    return ObservationRow(
        stage_id=stage.stage_id,
        at=at,
        workflow=stage.workflow,
        step=stage.step,
        role=stage.role,
        model=stage.candidates[0],
        features_json=msgspec.json.encode(stage).decode(),
        predicted_q50=told,
        predicted_q90=2 * told,
        predicted_p_tool=0.0,
        source="model",
        output_tokens=tokens,
    )
