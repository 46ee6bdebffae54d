"""Predicted tokens in flight per model: Chimera's Activity Monitor (C section 3.5).

Theory of operation. A *ledger* holds what one job is still expected to produce on one model. When
a stage of the job becomes ready, the ledger of its model is set to Y-hat, the predicted output of
this and all later stages; when the stage has siblings on the model (a fan-out), the larger figure
stands, since each of them counts the rest of the job. A ledger falls as tokens come, by what is
really produced, and never below zero: a stage that says more than was predicted leaves nothing,
not a debt. What a stage did not use of its prediction stays until the next stage of the job brings
a new one, or the job ends.

A job counts once. Where its stages move from model to model, the ledger of a model that serves
none of its stages now is dropped when the next stage becomes ready elsewhere.

A job that nobody declared (plain requests) is expected to go on only while it has a stage: its end
is not announced, and tokens that no engine works on would weigh on the model for half an hour.

All figures are whole tokens, so the sums are exact however long this runs.
"""

from __future__ import annotations

import math

from maestroctl.domain.ids import JobId, ModelName, StageId


class _Ledger:
    """Tokens that `job_id` is still expected to produce on `model`, and its live stages there."""

    __slots__ = ("job_id", "left", "model", "num_live")

    def __init__(self, job_id: JobId, model: ModelName) -> None:
        self.job_id = job_id
        self.model = model
        self.left = 0
        self.num_live = 0


class _Live:
    """A stage that waits or runs: its ledger, and the tokens of it that were counted."""

    __slots__ = ("ledger", "produced")

    def __init__(self, ledger: _Ledger) -> None:
        self.ledger = ledger
        self.produced = 0


class ActivityMonitor:
    """Who is expected to produce how much, where. O(1) per call."""

    __slots__ = ("_in_flight", "_jobs", "_num_live", "_stages")

    def __init__(self) -> None:
        self._jobs: dict[JobId, dict[ModelName, _Ledger]] = {}
        self._stages: dict[StageId, _Live] = {}
        self._in_flight: dict[ModelName, int] = {}
        self._num_live: dict[ModelName, int] = {}

    def in_flight(self, model: ModelName) -> int:
        """Pi: predicted tokens in flight on the model's engines, queued stages included."""
        return self._in_flight.get(model, 0)

    def num_live(self, model: ModelName) -> int:
        """Stages that wait for the model or run on it."""
        return self._num_live.get(model, 0)

    def job_tokens(self, job_id: JobId, model: ModelName) -> int:
        """The job's own part of `in_flight`."""
        ledger = self._jobs.get(job_id, {}).get(model)
        return 0 if ledger is None else ledger.left

    def stage_ready(
        self, stage_id: StageId, job_id: JobId, model: ModelName, total_tokens: float
    ) -> None:
        """A stage is to run on `model`; again when its prediction or its model changed.

        Args:
            total_tokens: Y-hat, output tokens of this and all later stages of the job.
        """
        live = self._stages.get(stage_id)
        if live is not None and live.ledger.model != model:
            self._remove(stage_id, live)
            live = None
        if live is None:
            live = _Live(self._ledger(job_id, model))
            live.ledger.num_live += 1
            self._stages[stage_id] = live
            self._num_live[model] = self._num_live.get(model, 0) + 1
        ledger = live.ledger
        left = max(0, math.ceil(total_tokens) - live.produced)
        self._set(ledger, left if ledger.num_live == 1 else max(left, ledger.left))
        for other in list(self._jobs[job_id].values()):
            if not other.num_live:
                self._drop(other)

    def stage_progressed(self, stage_id: StageId, output_tokens: int) -> None:
        """The stage has produced this many tokens so far; fewer than before are no news."""
        live = self._stages.get(stage_id)
        if live is not None and output_tokens > live.produced:
            self._set(live.ledger, max(0, live.ledger.left - output_tokens + live.produced))
            live.produced = output_tokens

    def stage_over(self, stage_id: StageId, output_tokens: int, job_goes_on: bool) -> None:
        """The stage is over, whatever its outcome.

        Args:
            output_tokens: of the stage, final.
            job_goes_on: more stages are expected, so what is left of the prediction stands.
        """
        live = self._stages.get(stage_id)
        if live is None:
            return
        self.stage_progressed(stage_id, output_tokens)
        self._remove(stage_id, live)
        if not job_goes_on and not live.ledger.num_live:
            self._drop(live.ledger)

    def job_gone(self, job_id: JobId) -> None:
        """The job is over or forgotten: nothing of it is in flight."""
        ledgers = self._jobs.get(job_id)
        if ledgers is None:
            return
        if any(ledger.num_live for ledger in ledgers.values()):
            for stage_id, live in list(self._stages.items()):
                if live.ledger.job_id == job_id:
                    self._remove(stage_id, live)
        for ledger in list(ledgers.values()):
            self._drop(ledger)

    # --- ledgers --------------------------------------------------------------------------------

    def _ledger(self, job_id: JobId, model: ModelName) -> _Ledger:
        ledgers = self._jobs.setdefault(job_id, {})
        ledger = ledgers.get(model)
        if ledger is None:
            ledger = ledgers[model] = _Ledger(job_id, model)
        return ledger

    def _set(self, ledger: _Ledger, left: int) -> None:
        before = self._in_flight.get(ledger.model, 0)
        self._in_flight[ledger.model] = before + left - ledger.left
        ledger.left = left

    def _remove(self, stage_id: StageId, live: _Live) -> None:
        """The stage is no longer one of its ledger's; what it left there stays."""
        del self._stages[stage_id]
        live.ledger.num_live -= 1
        self._num_live[live.ledger.model] -= 1

    def _drop(self, ledger: _Ledger) -> None:
        self._set(ledger, 0)
        ledgers = self._jobs[ledger.job_id]
        del ledgers[ledger.model]
        if not ledgers:
            del self._jobs[ledger.job_id]
