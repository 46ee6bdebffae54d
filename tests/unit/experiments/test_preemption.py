"""Without boundary preemption everything else is as with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.domain.prediction import Prediction
from maestroctl.experiments.preemption import POLICIES, RunToCompletion
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.registry import ORDERINGS
from maestroctl.testing.coordinator_builders import limited, make_stage

GUESS = Prediction(500.0, 900.0)


def _ready(policy: OrderingPolicy, position: int, deadline_s: float = 20.0) -> StageState:
    stage = replace(make_stage("s", arrival_s=3.0), position=position)
    job = JobState(stage.job_id, "", stage.service_class, 1.0, deadline_s)
    return StageState(stage, GUESS, job, policy.key(stage, job, GUESS, 3.0))


@pytest.mark.parametrize("name", POLICIES)
def test_jobs_that_have_not_begun_are_ordered_and_given_up_as_with_preemption(name: str) -> None:
    inner = ORDERINGS[name](limited())
    without = RunToCompletion(ORDERINGS[name](limited()))
    assert without.can_lapse == inner.can_lapse
    assert without.reserves_slots == inner.reserves_slots
    stage, same = _ready(without, 0), _ready(inner, 0)
    assert stage.key == same.key
    for now_s in (3.0, 500.0):
        assert without.late_key(stage, now_s) == inner.late_key(same, now_s)


def test_there_is_a_policy_whose_stages_lapse_and_one_that_reserves_slots() -> None:
    late = RunToCompletion(ORDERINGS["workflow_slo"](limited()))
    assert late.can_lapse
    assert late.reserves_slots
    assert late.late_key(_ready(late, 0), 500.0) is not None
    assert RunToCompletion(ORDERINGS["workflow_srtf"](limited())).reserves_slots
    assert not RunToCompletion(ORDERINGS["fcfs"](limited())).reserves_slots


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_that_has_begun_keeps_its_turn_late_or_not(name: str) -> None:
    without = RunToCompletion(ORDERINGS[name](limited()))
    begun = _ready(without, 1)
    assert begun.key < _ready(without, 0).key
    assert without.late_key(begun, 500.0) is None
