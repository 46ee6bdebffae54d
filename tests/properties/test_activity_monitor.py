"""The Activity Monitor under any order of calls, beside a plain account of every job."""

from __future__ import annotations

import math

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.scheduler.routing.activity_monitor import ActivityMonitor

MODELS = [ModelName(name) for name in ("a", "b", "c")]
JOBS = [JobId(name) for name in ("j1", "j2", "j3")]
TOKENS = st.floats(0, 5000)


class MonitorMachine(RuleBasedStateMachine):
    """`account`: (job, model) -> tokens left; `live`: stage -> (job, model, produced)."""

    @initialize()
    def begin(self) -> None:
        self.monitor = ActivityMonitor()
        self.account: dict[tuple[JobId, ModelName], int] = {}
        self.live: dict[StageId, tuple[JobId, ModelName, int]] = {}
        self.count = 0

    def _num_live(self, job: JobId, model: ModelName) -> int:
        return sum(1 for j, m, _ in self.live.values() if (j, m) == (job, model))

    def _ready(self, stage: StageId, job: JobId, model: ModelName, total: float, made: int) -> None:
        self.live[stage] = (job, model, made)
        self.monitor.stage_ready(stage, job, model, total)
        left = max(0, math.ceil(total) - made)
        if self._num_live(job, model) > 1:
            left = max(left, self.account.get((job, model), 0))
        self.account[job, model] = left
        for other in MODELS:
            if not self._num_live(job, other):
                self.account.pop((job, other), None)

    @rule(job=st.sampled_from(JOBS), model=st.sampled_from(MODELS), total=TOKENS)
    def ready(self, job: JobId, model: ModelName, total: float) -> None:
        self.count += 1
        self._ready(StageId(f"s{self.count}"), job, model, total, 0)

    @rule(data=st.data(), model=st.sampled_from(MODELS), total=TOKENS)
    def ready_again(self, data: st.DataObject, model: ModelName, total: float) -> None:
        """A better prediction, or another model."""
        if self.live:
            stage = data.draw(st.sampled_from(sorted(self.live)))
            job, before, made = self.live[stage]
            if before != model:
                made = 0
                del self.live[stage]
            self._ready(stage, job, model, total, made)

    @rule(data=st.data(), tokens=st.integers(0, 6000))
    def progressed(self, data: st.DataObject, tokens: int) -> None:
        if self.live:
            stage = data.draw(st.sampled_from(sorted(self.live)))
            self.monitor.stage_progressed(stage, tokens)
            self._produce(stage, tokens)

    def _produce(self, stage: StageId, tokens: int) -> None:
        job, model, made = self.live[stage]
        if tokens > made:
            self.account[job, model] = max(0, self.account[job, model] - (tokens - made))
            self.live[stage] = (job, model, tokens)

    @rule(data=st.data(), tokens=st.integers(0, 6000), goes_on=st.booleans())
    def over(self, data: st.DataObject, tokens: int, goes_on: bool) -> None:
        if self.live:
            stage = data.draw(st.sampled_from(sorted(self.live)))
            self.monitor.stage_over(stage, tokens, goes_on)
            self._produce(stage, tokens)
            job, model, _ = self.live.pop(stage)
            if not goes_on and not self._num_live(job, model):
                del self.account[job, model]

    @rule(job=st.sampled_from(JOBS))
    def gone(self, job: JobId) -> None:
        self.monitor.job_gone(job)
        self.live = {s: entry for s, entry in self.live.items() if entry[0] != job}
        self.account = {key: left for key, left in self.account.items() if key[0] != job}

    @rule(tokens=st.integers(0, 100))
    def strangers_change_nothing(self, tokens: int) -> None:
        self.monitor.stage_progressed(StageId("nobody"), tokens)
        self.monitor.stage_over(StageId("nobody"), tokens, True)
        self.monitor.job_gone(JobId("nobody"))

    @invariant()
    def figures_are_those_of_the_account(self) -> None:
        for model in MODELS:
            parts = [left for (_, m), left in self.account.items() if m == model]
            assert self.monitor.in_flight(model) == sum(parts)
            assert self.monitor.in_flight(model) >= 0
            live = sum(1 for _, m, _ in self.live.values() if m == model)
            assert self.monitor.num_live(model) == live
            for job in JOBS:
                assert self.monitor.job_tokens(job, model) == self.account.get((job, model), 0)

    def teardown(self) -> None:
        for job in JOBS:
            self.monitor.job_gone(job)
        assert not any(self.monitor.in_flight(model) for model in MODELS)
        assert not any(self.monitor.num_live(model) for model in MODELS)
        assert not self.monitor._jobs
        assert not self.monitor._stages


MonitorMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestActivityMonitor = MonitorMachine.TestCase


def test_a_chain_of_stages_counts_the_job_once_and_ends_with_nothing() -> None:
    monitor, job, model = ActivityMonitor(), JOBS[0], MODELS[0]
    monitor.stage_ready(StageId("s1"), job, model, 900.0)
    monitor.stage_progressed(StageId("s1"), 100)
    assert monitor.in_flight(model) == 800
    monitor.stage_over(StageId("s1"), 250, job_goes_on=True)
    assert monitor.in_flight(model) == 650, "what the rest of the job will say is still to come"
    monitor.stage_ready(StageId("s2"), job, model, 400.0)
    assert monitor.in_flight(model) == 400, "the newer prediction holds"
    monitor.stage_over(StageId("s2"), 1000, job_goes_on=True)
    assert monitor.in_flight(model) == 0, "more than was predicted leaves no debt"
    monitor.job_gone(job)
    assert monitor.in_flight(model) == 0


def test_a_job_that_moves_to_another_model_is_not_counted_on_both() -> None:
    monitor, job, (small, large, _) = ActivityMonitor(), JOBS[0], MODELS
    monitor.stage_ready(StageId("s1"), job, small, 900.0)
    monitor.stage_over(StageId("s1"), 200, job_goes_on=True)
    monitor.stage_ready(StageId("s2"), job, large, 700.0)
    assert (monitor.in_flight(small), monitor.in_flight(large)) == (0, 700)


def test_a_plain_request_leaves_nothing_behind() -> None:
    monitor = ActivityMonitor()
    monitor.stage_ready(StageId("s1"), JOBS[0], MODELS[0], 900.0)
    monitor.stage_over(StageId("s1"), 20, job_goes_on=False)
    assert monitor.in_flight(MODELS[0]) == 0
