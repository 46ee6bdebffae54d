"""Shortest remaining time first over workflows (Maestro section III-D, Eqs 7 and 8).

T_rem = T_exec of this stage + T_future of the job's state. Three things keep it calm:

- Smoothing acts on the job's *total* W = attained + T_rem, as an EWMA over its stages; the size is
  W - attained. An EWMA of T_rem itself would lag behind a quantity that falls by design.
- Hysteresis: the job whose stage has just ended is the incumbent; its next size counts 0.9 of
  itself, once, and only while no other stage has ended in between.
- Aging as in `aging`.

The paper names smoothing, hysteresis and aging and gives neither forms nor constants.
"""

from __future__ import annotations

from typing import NamedTuple

from maestroctl.domain.ids import JobId, StageId
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.ordering.aging import Aged

SMOOTHING = 0.5
"""Weight of the newest estimate of W."""
HYSTERESIS = 0.9


class _Base(NamedTuple):
    """Smoothed W of a job before a stage (None = it is the first), and the hysteresis it gets."""

    total_s: float | None
    factor: float


class WorkflowSrtf(Aged):
    """Size = smoothed W - attained, in seconds of work."""

    reserves_slots = True

    def __init__(self, policy: PolicySpec) -> None:
        super().__init__(policy)
        self._totals: dict[JobId, float] = {}  # W of live jobs, smoothed
        self._incumbent: JobId | None = None
        self._bases: dict[JobId, dict[StageId, _Base]] = {}  # of stages that have not ended

    def size(self, stage: StageDescriptor, job: JobState, prediction: Prediction) -> float:
        """Seconds."""
        base = self._base(stage.stage_id, job.job_id)
        total_s = job.attained_s + self.remaining_s(stage, prediction)
        if base.total_s is not None:
            total_s = base.total_s + SMOOTHING * (total_s - base.total_s)
        self._totals[job.job_id] = total_s
        return base.factor * max(0.0, total_s - job.attained_s)

    def _base(self, stage_id: StageId, job_id: JobId) -> _Base:
        """Where the stage's estimate starts from, the same however often it is predicted anew."""
        bases = self._bases.setdefault(job_id, {})
        if stage_id not in bases:
            is_incumbent = self._incumbent == job_id
            if is_incumbent:
                self._incumbent = None
            factor = HYSTERESIS if is_incumbent else 1.0
            bases[stage_id] = _Base(self._totals.get(job_id), factor)
        return bases[stage_id]

    def remaining_s(self, stage: StageDescriptor, prediction: Prediction) -> float:
        """T_rem of Eq 7."""
        return self._costs.remaining_work_s(stage, prediction)

    def on_stage_ended(
        self,
        stage: StageDescriptor,
        job: JobState,
        served_s: float,  # noqa: ARG002
        output_tokens: int,  # noqa: ARG002
    ) -> None:
        """The job is the incumbent now."""
        self._incumbent = job.job_id
        self._bases.get(job.job_id, {}).pop(stage.stage_id, None)

    def on_job_gone(self, job_id: JobId) -> None:
        """Forget it."""
        self._totals.pop(job_id, None)
        self._bases.pop(job_id, None)
        if self._incumbent == job_id:
            self._incumbent = None
