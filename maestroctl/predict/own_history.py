"""This fleet's own observations as trace jobs, so that a refit can learn from them.

Covers: stored rows -> `TraceJob` values and what was told of each stage. Does not cover reading the
store; the caller hands over the rows and when each stage became ready.

A stage sees what had ended when it became ready, exactly as live; the order of rows alone would let
the branches of a fan-out see each other. Text is not kept, so whether a prompt repeated is not
known: `same_prompt` is False throughout, and a constant column is never split on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.stage import PromptTokens, ServiceClass, StageDescriptor
from maestroctl.domain.stage_text import MAX_SYSTEM_CHARS, MAX_TAIL_CHARS, StageText, count_tokens
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.predict.traces import TraceJob, TraceStage

_SOURCE = "own"
_MOST_SYSTEM, _MOST_USER = count_tokens("x" * MAX_SYSTEM_CHARS), count_tokens("x" * MAX_TAIL_CHARS)


class ObservedStage(Protocol):
    """What is read of `store.rows.ObservationRow`."""

    @property
    def stage_id(self) -> str:
        """Of the stage."""

    @property
    def at(self) -> float:
        """When it ended, Unix seconds."""

    @property
    def model(self) -> str:
        """Which served it."""

    @property
    def features_json(self) -> str:
        """Its descriptor."""

    @property
    def predicted_q50(self) -> float:
        """Median that was told, tokens."""

    @property
    def output_tokens(self) -> int:
        """Exact, or a lower bound when censored."""

    @property
    def tool_called(self) -> bool | None:
        """The answer asked for a tool; None = not known."""

    @property
    def censored(self) -> bool:
        """It was cut."""


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """Ended jobs, oldest first, and per job and stage the median that was told (tokens).

    Attributes:
        unreadable: rows left out because another version wrote them.
    """

    jobs: tuple[TraceJob, ...]
    told_q50: tuple[tuple[float, ...], ...]
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class _Seen:
    row: ObservedStage
    stage: StageDescriptor
    arrived_at: float


def own_history(
    rows: Iterable[ObservedStage],
    arrived_at: Mapping[str, float],
    ended_jobs: Iterable[str],
    incomplete_jobs: Collection[str] = (),
) -> OwnHistory:
    """Group observations by job and replay each job.

    Args:
        rows: in any order.
        arrived_at: stage -> when it became ready, Unix seconds; a stage without one is left out.
        ended_jobs: jobs that are over; others are left out.
        incomplete_jobs: those of them that failed or were cancelled: they say how long stages are,
            and not how long jobs.
    """
    ended, unreadable = set(ended_jobs), 0
    by_job: dict[JobId, list[_Seen]] = {}
    for row in rows:
        ready_at = arrived_at.get(row.stage_id)
        if ready_at is None:
            continue
        try:
            stage = read_descriptor(row.features_json)
        except (ValueError, TypeError, KeyError, AttributeError):
            unreadable += 1
            continue
        if stage.job_id in ended:
            by_job.setdefault(stage.job_id, []).append(_Seen(row, stage, ready_at))
    groups = sorted(by_job.values(), key=lambda seen: max(one.row.at for one in seen))
    for seen in groups:
        seen.sort(key=lambda one: (one.arrived_at, one.stage.position, one.row.stage_id))
    return OwnHistory(
        jobs=tuple(
            replace(job, is_complete=job.job not in incomplete_jobs)
            for job in map(_trace_job, groups)
        ),
        told_q50=tuple(tuple(one.row.predicted_q50 for one in seen) for seen in groups),
        unreadable=unreadable,
    )


def read_descriptor(features_json: str) -> StageDescriptor:
    """The descriptor that was stored with an observation.

    Rows of earlier versions counted all of the text and named a stage without a step by its
    position; they are read as they would be written now.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: it is of another version.
    """
    raw = dict(json.loads(features_json))
    raw["candidates"] = tuple(raw["candidates"])
    counts = raw["prompt_tokens"]
    raw["prompt_tokens"] = PromptTokens(
        system=min(counts["system"], _MOST_SYSTEM),
        user=min(counts["user"], _MOST_USER),
        full=counts["full"],
    )
    if raw["step"] == f"call-{raw['position']}":
        raw["step"] = ""
    raw["service_class"] = ServiceClass(raw["service_class"])
    return StageDescriptor(**raw)


def _trace_job(seen: Sequence[_Seen]) -> TraceJob:
    """`seen` in order of arrival; ended stages enter the history in order of their end."""
    history, coming = JobHistory(), sorted(seen, key=lambda one: one.row.at)
    stages: list[TraceStage] = []
    for one in seen:
        while coming and coming[0].row.at <= one.arrived_at:
            _remember(coming.pop(0), history)
        known = not one.row.censored
        stages.append(
            TraceStage(
                _stage_input(one, history),
                one.row.output_tokens if known else None,
                one.row.tool_called if known else None,
            )
        )
    first = seen[0].stage
    return TraceJob(first.job_id, first.job_id, first.workflow, _SOURCE, tuple(stages))


def _stage_input(one: _Seen, history: JobHistory) -> StageInput:
    """As served: the label belongs to the model that ran the stage, not to all candidates."""
    served = replace(one.stage, candidates=(ModelName(one.row.model),))
    built = build_stage_input(served, StageText(), history).without_text()
    return replace(built, history=replace(built.history, same_prompt=False))


def _remember(one: _Seen, history: JobHistory) -> None:
    """Live, a stage that was cut does not enter the history either."""
    if not one.row.censored:
        stage = one.stage
        history.add(
            EndedStage(
                stage.role,
                stage.step,
                stage.prompt_tokens.full,
                one.row.output_tokens,
                stage.tools_available,
                one.row.tool_called,
            )
        )
