"""What every `OrderingPolicy` must keep, whatever it prefers."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from maestroctl.domain.ids import JobId
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.stage import ServiceClass
from maestroctl.scheduler.coordinator_state import JobState
from maestroctl.scheduler.registry import ORDERINGS
from maestroctl.testing.coordinator_builders import fingerprint, limited, make_stage

POLICY = PolicySpec()


@st.composite
def situations(draw: st.DrawFn) -> tuple[object, JobState, Prediction]:
    """A stage that became ready, its job so far, and what is predicted."""
    stage = make_stage(
        arrival_s=draw(st.floats(0, 1e6)),
        prompt_tokens=draw(st.integers(0, 100_000)),
        service_class=draw(st.sampled_from(list(ServiceClass))),
        max_tokens=draw(st.none() | st.integers(1, 100_000)),
    )
    deadline_s = draw(st.none() | st.floats(0, 2e6))
    job = JobState(stage.job_id, "flow", stage.service_class, stage.arrival_s, deadline_s)
    job.attained_s = draw(st.floats(0, 1e5))
    job.attained_tokens = draw(st.integers(0, 10**6))
    low, high = sorted(draw(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5))))
    totals = draw(st.sampled_from([{}, {"m": 500.0}]))
    return stage, job, Prediction(low, high, total_tokens=totals)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ORDERINGS)
@given(situation=situations(), later_s=st.floats(0, 1e4))
def test_a_key_is_a_number_that_does_not_depend_on_when_it_is_asked(
    name: str, situation: tuple[object, JobState, Prediction], later_s: float
) -> None:
    stage, job, prediction = situation
    policy = ORDERINGS[name](POLICY)
    before = fingerprint(job)
    key = policy.key(stage, job, prediction, 1e6)  # type: ignore[arg-type]
    assert not math.isnan(key)
    assert ORDERINGS[name](POLICY).key(stage, job, prediction, 1e6 + later_s) == key  # type: ignore[arg-type]
    assert fingerprint(job) == before


@pytest.mark.parametrize("name", ORDERINGS)
@given(situation=situations(), earlier_s=st.floats(1, 1e5))
def test_of_two_equal_stages_the_earlier_one_goes_first(
    name: str, situation: tuple[object, JobState, Prediction], earlier_s: float
) -> None:
    stage, job, prediction = situation
    early = make_stage("early", arrival_s=stage.arrival_s - earlier_s)  # type: ignore[attr-defined]
    late = make_stage("late", arrival_s=stage.arrival_s)  # type: ignore[attr-defined]
    policy = ORDERINGS[name](limited(aging_s=1.0))
    assert policy.key(early, job, prediction, 1e6) < policy.key(late, job, prediction, 1e6)


@pytest.mark.parametrize("name", ORDERINGS)
@given(situation=situations())
def test_the_hooks_take_what_the_core_tells_them(
    name: str, situation: tuple[object, JobState, Prediction]
) -> None:
    stage, job, _ = situation
    policy = ORDERINGS[name](POLICY)
    policy.on_stage_ended(stage, job, 1.5, 30)  # type: ignore[arg-type]
    policy.on_tools_ran(job, "step", 0.5)
    policy.on_job_gone(job.job_id)
    policy.on_job_gone(JobId("never seen"))
