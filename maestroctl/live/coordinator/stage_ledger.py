"""Keeps the times of every stage and writes them down when it ends: store rows and metrics.

Fed with the core's events and effects as they pass; decides nothing.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from maestroctl.domain.ids import JobId, ModelName, NodeName, StageId
from maestroctl.domain.outcome import JobStatus, Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.stage import StageDescriptor
from maestroctl.live.coordinator.event_bus import EventBus
from maestroctl.scheduler.effects import DispatchStage, ResolveStage
from maestroctl.scheduler.events import PredictionArrived, StageArrived, StageEnded, StageStarted
from maestroctl.store.journal import Journal
from maestroctl.store.rows import JobRow, ObservationRow, StageAttemptRow, decision_row
from maestroctl.telemetry.exposition import Load, Telemetry

_REMEMBERED_JOBS = 20_000


@dataclass(slots=True)
class _Track:
    """Times of one stage, in the loop's seconds. Owner: the ledger."""

    stage: StageDescriptor
    prediction: Prediction
    streamed: bool
    dispatch: DispatchStage | None = None
    dispatched_s: float | None = None
    first_byte_s: float | None = None
    activation: str = ""
    activation_s: float = 0.0
    usage: Usage | None = None
    tool_called: bool | None = None


class StageLedger:
    """Times and rows of stages.

    Args:
        now_s: the loop's clock.
        wall_offset_s: wall clock minus that.
    """

    def __init__(
        self,
        journal: Journal,
        telemetry: Telemetry,
        bus: EventBus,
        now_s: Callable[[], float],
        wall_offset_s: float,
    ) -> None:
        self._now_s = now_s
        self._journal = journal
        self._telemetry = telemetry
        self._bus = bus
        self._wall_offset_s = wall_offset_s
        self._tracks: dict[StageId, _Track] = {}
        self._first_seen: OrderedDict[JobId, float] = OrderedDict()

    # --- what passes ----------------------------------------------------------------------------

    def arrived(self, event: StageArrived, *, streamed: bool) -> None:
        """A stage became ready; `streamed` = its answer comes token by token."""
        stage = event.stage
        self._tracks[stage.stage_id] = _Track(stage, event.prediction, streamed)
        if stage.external:
            self._write_external_job(stage, JobStatus.RUNNING, "")
        if self._bus.has_watchers:
            self._bus.publish("stage_queued", stage.job_id, **_names(stage))

    def predicted(self, event: PredictionArrived) -> None:
        """A better prediction came; the row of the stage will have it."""
        track = self._tracks.get(event.stage_id)
        if track is not None:
            track.prediction = event.prediction

    def dispatched(self, effect: DispatchStage, now_s: float) -> None:
        """A stage was sent to a node."""
        track = self._tracks[effect.stage_id]
        track.dispatch = effect
        track.dispatched_s = now_s
        if self._bus.has_watchers:
            self._bus.publish(
                "stage_dispatched",
                track.stage.job_id,
                **{**_names(track.stage), "model": effect.model, "node": effect.node},
            )

    def activated(self, stage_id: StageId, activation: str, seconds: float) -> None:
        """The node says that the stage waited for a wake or a start."""
        track = self._tracks.get(stage_id)
        if track is not None:
            track.activation = activation
            track.activation_s = seconds

    def started(self, event: StageStarted, now_s: float) -> None:
        """The first byte came."""
        track = self._tracks.get(event.stage_id)
        if track is None:
            return
        track.first_byte_s = now_s
        if self._bus.has_watchers:
            self._bus.publish("stage_started", track.stage.job_id, **_names(track.stage))

    def ended(self, event: StageEnded, now_s: float) -> None:
        """An attempt ended."""
        track = self._tracks.get(event.stage_id)
        if track is None:
            return
        track.usage = event.usage
        track.tool_called = event.tool_called
        if event.outcome is Outcome.FAILED and not event.started:
            self._write_attempt(track, event.outcome, event.reason, now_s)

    def resolved(self, effect: ResolveStage, now_s: float) -> None:
        """A stage is over."""
        track = self._tracks.pop(effect.stage_id, None)
        if track is None:
            return
        stage = track.stage
        row = self._write_attempt(track, effect.outcome, effect.reason, now_s)
        self._telemetry.stage_ended(row)
        self._telemetry.prediction(track.prediction.source)
        self._write_observation(track, effect.outcome, now_s)
        if stage.external:
            self._write_external_job(stage, _job_status(effect.outcome), effect.reason)
        if self._bus.has_watchers:
            self._bus.publish(
                "stage_finished",
                stage.job_id,
                **_names(stage),
                outcome=effect.outcome.value,
                reason=effect.reason,
                output_tokens=track.usage.output_tokens if track.usage else None,
            )

    def decided(self, record: DecisionRecord) -> None:
        """A decision of the core or of a node."""
        self._journal.write([decision_row(record, self._wall(record.at_s))])
        self._telemetry.decision(record.kind)

    def load(self, stale_events: int, kept_slots: Mapping[tuple[ModelName, NodeName], int]) -> Load:
        """How much waits and runs, for the metrics."""
        waiting: Counter[str] = Counter()
        in_flight = 0
        for track in self._tracks.values():
            if track.dispatch is None:
                waiting[track.stage.service_class.value] += 1
            else:
                in_flight += 1
        return Load(waiting, in_flight, stale_events, kept_slots)

    def running(self, now_s: float) -> list[dict[str, object]]:
        """Stages that are not over, oldest first."""
        return [
            {
                **_names(track.stage),
                "job_id": track.stage.job_id,
                "class": track.stage.service_class.value,
                "node": track.dispatch.node if track.dispatch else None,
                "state": _state(track),
                "age_s": now_s - track.stage.arrival_s,
            }
            for track in self._tracks.values()
        ]

    # --- rows -----------------------------------------------------------------------------------

    def _write_attempt(
        self, track: _Track, outcome: Outcome, reason: str, now_s: float
    ) -> StageAttemptRow:
        stage, dispatch, usage = track.stage, track.dispatch, track.usage
        row = StageAttemptRow(
            stage_id=stage.stage_id,
            job_id=stage.job_id,
            attempt=dispatch.attempt if dispatch else 0,
            arrived_at=self._wall(stage.arrival_s),
            step=stage.place,
            role=stage.role,
            model=dispatch.model if dispatch else stage.candidates[0],
            node=dispatch.node if dispatch else "",
            service_class=stage.service_class,
            outcome=outcome,
            reason=reason,
            dispatched_at=self._wall_or_none(track.dispatched_s),
            first_byte_at=self._wall_or_none(track.first_byte_s),
            ended_at=self._wall(now_s),
            prompt_tokens=usage.prompt_tokens if usage else None,
            output_tokens=usage.output_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            activation=track.activation,
            activation_s=track.activation_s,
            streamed=track.streamed,
        )
        self._journal.write([row])
        return row

    def _write_observation(self, track: _Track, outcome: Outcome, now_s: float) -> None:
        if track.dispatch is None or track.usage is None:
            return
        stage, prediction = track.stage, track.prediction
        row = ObservationRow(
            stage_id=stage.stage_id,
            at=self._wall(now_s),
            workflow=stage.workflow,
            step=stage.place,
            role=stage.role,
            model=track.dispatch.model,
            features_json=msgspec.json.encode(stage).decode(),
            predicted_q50=prediction.output_q50,
            predicted_q90=prediction.output_q90,
            predicted_p_tool=prediction.p_tool,
            source=prediction.source,
            output_tokens=track.usage.output_tokens,
            tool_called=track.tool_called,
            censored=outcome is not Outcome.FINISHED,
        )
        self._journal.write([row])

    def _write_external_job(self, stage: StageDescriptor, status: JobStatus, reason: str) -> None:
        """The row of a plain request, or of a job whose requests come one by one."""
        first_s = self._first_seen.setdefault(stage.job_id, stage.arrival_s)
        self._first_seen.move_to_end(stage.job_id)
        if len(self._first_seen) > _REMEMBERED_JOBS:
            self._first_seen.popitem(last=False)
        self._journal.write(
            [
                JobRow(
                    job_id=stage.job_id,
                    submitted_at=self._wall(first_s),
                    workflow=stage.workflow,
                    service_class=stage.service_class,
                    status=status,
                    reason=reason,
                    finished_at=self._wall(self._now_s()) if status.is_final else None,
                    external=True,
                )
            ]
        )

    def _wall(self, at_s: float) -> float:
        return at_s + self._wall_offset_s

    def _wall_or_none(self, at_s: float | None) -> float | None:
        return None if at_s is None else at_s + self._wall_offset_s


def _names(stage: StageDescriptor) -> dict[str, str]:
    return {
        "stage_id": stage.stage_id,
        "step": stage.place,
        "role": stage.role,
        "model": stage.candidates[0],
    }


def _state(track: _Track) -> str:
    if track.first_byte_s is not None:
        return "running"
    return "queued" if track.dispatch is None else "dispatched"


def _job_status(outcome: Outcome) -> JobStatus:
    match outcome:
        case Outcome.FINISHED | Outcome.INVALID:
            return JobStatus.FINISHED
        case Outcome.CANCELLED:
            return JobStatus.CANCELLED
        case Outcome.INTERRUPTED:
            return JobStatus.INTERRUPTED
        case _:
            return JobStatus.FAILED
