"""Predictions in the live coordinator: made for every stage, and learned from when it ends.

Theory of operation
-------------------
`begin` answers at once, from the running figures of this fleet (or the prior): that is the
fallback, and all there is without learned models. `improve` asks the predictor process, within its
budget, and calibrates what it says. The host decides which of the two a stage starts with.

Events and effects pass by here on their way (`dispatched`, `progressed`, `ended`, `resolved`), and
teach the running figures: a finished stage its length, a cut one its lower bound, a running one
that it passed its quantile, an ended job what each of its stages still had before it. Jobs of
outside callers have no end of their own; they are over after `IDLE_S` without a stage.

Not here: durability (`online_store`), the process (`predictor_service`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.domain.stage_text import StageText
from maestroctl.live.timers import core_now_s
from maestroctl.predict.annotate import Annotation, annotate, count_miss, learn, learn_total
from maestroctl.predict.history import EndedStage, JobHistory
from maestroctl.predict.raw_prediction import RawPrediction
from maestroctl.predict.recalibration import Observation, OnlineState
from maestroctl.predict.stage_input import StageInput, build_stage_input
from maestroctl.scheduler.effects import DispatchStage, ResolveStage
from maestroctl.scheduler.events import StageEnded, StageProgressed
from maestroctl.telemetry.exposition import Telemetry

IDLE_S = 120.0
"""After this long without a stage an outside caller's job counts as over."""
_MAX_JOBS = 4096
_MAX_STAGES = 256
"""Stages of one job whose remainders are learned from."""
_LATENCIES = 2048
_ERRORS = 200


class AsksModels(Protocol):
    """What is needed of `predict.client.PredictorClient`."""

    async def predict(self, stage: StageInput) -> dict[str, RawPrediction]:
        """Raw figures by expert; empty = none in time."""


@dataclass(slots=True)
class _Job:
    """What is known of a job. Owner: the desk."""

    history: JobHistory = field(default_factory=JobHistory)
    external: bool = True
    open_stages: int = 0
    touched_s: float = 0.0
    ended: deque[tuple[Annotation, ModelName, int]] = field(
        default_factory=lambda: deque(maxlen=_MAX_STAGES)
    )


@dataclass(slots=True)
class _Watched:
    """A stage between `begin` and its end. Owner: the desk."""

    annotation: Annotation
    job: _Job
    model: ModelName | None = None
    tokens: int | None = None
    tool_called: bool | None = None
    missed: bool = False


@dataclass(frozen=True, slots=True)
class WrongGuess:
    """A stage that came out unlike what was predicted; for `predictor status`."""

    workflow: str
    role: str
    model: str
    predicted_q50: float
    output_tokens: int


class PredictionDesk:
    """One owner: the coordinator host.

    Args:
        state: of the running figures; also what `online_store` writes down.
        client: asks the learned models; None = there are none.

    Attributes:
        learned: stages that were learned from since the start.
    """

    def __init__(
        self,
        state: OnlineState,
        telemetry: Telemetry,
        client: AsksModels | None = None,
        now_s: Callable[[], float] = core_now_s,
    ) -> None:
        self.state = state
        self.latencies_s: deque[float] = deque(maxlen=_LATENCIES)
        self.answered = 0
        self.fallbacks = 0
        self.learned = 0
        self.errors: deque[WrongGuess] = deque(maxlen=_ERRORS)
        self._client = client
        self._telemetry = telemetry
        self._now_s = now_s
        self._jobs: OrderedDict[JobId, _Job] = OrderedDict()
        self._watched: dict[StageId, _Watched] = {}

    @property
    def asks_models(self) -> bool:
        """There are learned models to ask."""
        return self._client is not None

    # --- before a stage runs --------------------------------------------------------------------

    def begin(self, stage: StageDescriptor, text: StageText) -> Prediction:
        """The fallback for a stage that became ready; it is watched from here on."""
        job = self._job(stage)
        job.open_stages += 1
        annotation = annotate(build_stage_input(stage, text, job.history), {}, self.state)
        self._watched[stage.stage_id] = _Watched(annotation, job)
        return annotation.prediction

    async def improve(self, stage_id: StageId, *, waits: bool = True) -> Prediction | None:
        """What the models say, calibrated; None = nothing in time, or the stage is over.

        Args:
            waits: the stage is not told to the core before; for the metric.
        """
        watched = self._watched.get(stage_id)
        if self._client is None or watched is None:
            return None
        began_s = self._now_s()
        said = await self._client.predict(watched.annotation.stage)
        self._count(said, self._now_s() - began_s, waits)
        if not said or self._watched.get(stage_id) is not watched:
            return None
        watched.annotation = annotate(watched.annotation.stage, said, self.state)
        return watched.annotation.prediction

    def forget(self, stage_id: StageId) -> None:
        """The stage never reached the core."""
        watched = self._watched.pop(stage_id, None)
        if watched is not None:
            watched.job.open_stages -= 1

    def _count(self, said: Mapping[str, RawPrediction], seconds: float, waited: bool) -> None:
        self._telemetry.predicted(seconds, waited=waited)
        self.latencies_s.append(seconds)
        if said:
            self.answered += 1
        else:
            self.fallbacks += 1
            self._telemetry.fallback("prediction")

    def _job(self, stage: StageDescriptor) -> _Job:
        job = self._jobs.get(stage.job_id)
        if job is None:
            job = self._jobs[stage.job_id] = _Job(external=stage.external)
            if len(self._jobs) > _MAX_JOBS:
                self._jobs.popitem(last=False)  # it may run on, so it says nothing of totals
        self._jobs.move_to_end(stage.job_id)
        job.touched_s = self._now_s()
        return job

    # --- what passes by -------------------------------------------------------------------------

    def dispatched(self, effect: DispatchStage) -> None:
        """The stage was sent to a node, under this model."""
        watched = self._watched.get(effect.stage_id)
        if watched is not None:
            watched.model = effect.model

    def progressed(self, event: StageProgressed) -> None:
        """So many tokens came so far; past the booked quantile that is a miss already."""
        watched = self._watched.get(event.stage_id)
        if watched is None or watched.model is None:
            return
        watched.tokens = max(event.output_tokens, watched.tokens or 0)
        told = watched.annotation.told.get(watched.model)
        if told is not None and not watched.missed and event.output_tokens > told.q90:
            watched.missed = True
            count_miss(watched.annotation, watched.model, self.state)

    def ended(self, event: StageEnded) -> None:
        """An attempt ended."""
        watched = self._watched.get(event.stage_id)
        if watched is not None and event.usage is not None:
            watched.tokens = event.usage.output_tokens
            watched.tool_called = event.tool_called

    def resolved(self, effect: ResolveStage) -> None:
        """The stage is over: learn from it."""
        watched = self._watched.pop(effect.stage_id, None)
        if watched is None:
            return
        job = watched.job
        job.open_stages -= 1
        job.touched_s = self._now_s()
        if watched.model is None or watched.tokens is None:
            return
        if effect.outcome is Outcome.FINISHED:
            self._learn(watched, watched.model, watched.tokens, censored=False)
        elif effect.outcome is not Outcome.INVALID and watched.tokens > 0:
            self._learn(watched, watched.model, watched.tokens, censored=True)

    def _learn(self, watched: _Watched, model: ModelName, tokens: int, *, censored: bool) -> None:
        annotation, job = watched.annotation, watched.job
        self.learned += 1
        learn(
            annotation,
            model,
            Observation(tokens, censored, miss_counted=watched.missed),
            self.state,
        )
        if censored:
            return
        stage = annotation.stage
        self.errors.append(
            WrongGuess(stage.workflow, stage.role, model, annotation.prediction.output_q50, tokens)
        )
        job.history.add(
            EndedStage(
                stage.role,
                stage.step,
                stage.prompt_tokens,
                tokens,
                stage.tools_available,
                watched.tool_called,
                stage.tail,
            )
        )
        job.ended.append((replace(annotation, stage=stage.without_text()), model, tokens))

    # --- the end of jobs ------------------------------------------------------------------------

    def job_ended(self, job_id: JobId, *, complete: bool) -> None:
        """A workflow run is over; only a complete one says how long runs are."""
        job = self._jobs.pop(job_id, None)
        if job is not None and complete:
            self._close(job)

    def sweep(self) -> None:
        """End the jobs of outside callers that have been idle; call it now and then."""
        due_s = self._now_s() - IDLE_S
        idle = [
            job_id
            for job_id, job in self._jobs.items()
            if job.external and job.open_stages == 0 and job.touched_s <= due_s
        ]
        for job_id in idle:
            self._close(self._jobs.pop(job_id))

    def _close(self, job: _Job) -> None:
        remaining = 0
        for annotation, model, tokens in reversed(job.ended):
            remaining += tokens
            learn_total(annotation, model, remaining, self.state)
