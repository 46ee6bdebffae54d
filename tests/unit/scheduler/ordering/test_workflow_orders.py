"""Orders that see the whole job: workflow_srtf, stjf and their oracles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.domain.ids import JobId
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.execution_profile import ExecutionProfile
from maestroctl.scheduler.ordering.aging import TOKEN_S
from maestroctl.scheduler.ordering.oracle_srtf import OracleSrtf
from maestroctl.scheduler.ordering.oracle_stjf import OracleStjf
from maestroctl.scheduler.ordering.stjf import Stjf
from maestroctl.scheduler.ordering.workflow_srtf import HYSTERESIS, SMOOTHING, WorkflowSrtf
from maestroctl.testing.coordinator_builders import PREDICTION, limited, make_stage
from tests.unit.scheduler.ordering.support import make_costs, make_job, predict

NO_AGING = limited(aging_s=0.0)


def in_flow(stage_id: str, workflow: str, role: str = "a") -> StageDescriptor:
    return replace(make_stage(stage_id, role=role), workflow=workflow, step=role)


def two_flows() -> ExecutionProfile:
    """After its first stage `short` does 1 s more and `long` 50 s."""
    profile = ExecutionProfile()
    for number in range(64):
        for flow, after_s in (("short", 1.0), ("long", 50.0)):
            job = f"{flow}{number}"
            first = replace(in_flow(f"{job}a", flow), job_id=JobId(job))
            second = replace(in_flow(f"{job}b", flow, "b"), job_id=JobId(job))
            profile.stage_ended(first, 1.0, 0.0)
            profile.stage_ended(second, after_s, 1.0)
            profile.job_finished(JobId(job))
    return profile


def srtf() -> WorkflowSrtf:
    policy = WorkflowSrtf(NO_AGING)
    policy.use(make_costs(two_flows()))
    return policy


def test_srtf_adds_what_usually_follows_to_what_the_stage_takes() -> None:
    costs = make_costs(two_flows())
    stage = in_flow("s", "long")
    key = srtf().key(stage, make_job(), predict(50), 0.0)
    assert key == pytest.approx(costs.execution_s(stage, 50) + 50.0, rel=0.1)


def test_srtf_prefers_a_longer_stage_of_a_job_that_is_nearly_done() -> None:
    policy = srtf()
    ending = policy.key(in_flow("s1", "short"), make_job("j1"), predict(100), 0.0)
    beginning = policy.key(in_flow("s2", "long"), make_job("j2"), predict(10), 0.0)
    assert ending < beginning


def test_srtf_smooths_the_total_and_not_what_remains() -> None:
    policy = srtf()
    stage, job = in_flow("s", "new"), make_job()
    first = policy.remaining_s(stage, predict(100))
    assert policy.key(stage, job, predict(100), 0.0) == pytest.approx(first)
    job.attained_s = 5.0
    stage = in_flow("next", "new")
    second = policy.remaining_s(stage, predict(400))
    total = first + SMOOTHING * (5.0 + second - first)
    assert policy.key(stage, job, predict(400), 0.0) == pytest.approx(total - 5.0)


def test_srtf_with_a_right_estimate_falls_by_what_was_attained() -> None:
    policy = WorkflowSrtf(NO_AGING)
    job = make_job()
    stage = make_stage(prompt_tokens=0)
    before = policy.key(stage, job, predict(500), 0.0)  # 10 s at 0.02 s a token
    job.attained_s = 4.0
    following = make_stage("s2", prompt_tokens=0)
    assert policy.key(following, job, predict(300), 0.0) == pytest.approx(before - 4.0)


def test_srtf_favours_the_incumbent_once_and_only_while_no_other_stage_has_ended() -> None:
    policy = srtf()
    stage, job, other = in_flow("s", "long"), make_job("j"), make_job("other")
    plain = policy.key(stage, job, PREDICTION, 0.0)
    policy.on_stage_ended(stage, job, 1.0, 10)
    following, third, fourth = (in_flow(name, "long") for name in ("s2", "s3", "s4"))
    assert policy.key(following, job, PREDICTION, 0.0) == pytest.approx(HYSTERESIS * plain)
    assert policy.key(third, job, PREDICTION, 0.0) == pytest.approx(plain)
    policy.on_stage_ended(following, job, 1.0, 10)
    policy.on_stage_ended(stage, other, 1.0, 10)
    assert policy.key(fourth, job, PREDICTION, 0.0) == pytest.approx(plain)


def test_srtf_gives_a_stage_the_same_size_however_often_it_is_predicted_anew() -> None:
    policy, job = srtf(), make_job("j")
    first, second = make_stage("s1", job="j"), make_stage("s2", job="j")
    policy.size(first, job, predict(1000))
    policy.on_stage_ended(first, job, 42.0, 1000)
    job.attained_s = 42.0
    size = policy.size(second, job, predict(100))
    assert policy.size(second, job, predict(100)) == size
    policy.size(second, job, predict(9000))
    assert policy.size(second, job, predict(100)) == size


def test_srtf_forgets_jobs_that_are_gone() -> None:
    policy = srtf()
    job = make_job("j")
    policy.key(in_flow("s", "long"), job, PREDICTION, 0.0)
    policy.on_stage_ended(in_flow("s", "long"), job, 1.0, 10)
    policy.on_job_gone(job.job_id)
    assert not policy._totals
    assert policy._incumbent is None


@pytest.mark.parametrize("kind", [Stjf, OracleStjf])
def test_stjf_goes_by_the_tokens_of_the_whole_job(kind: type[Stjf]) -> None:
    policy = kind(NO_AGING)
    stage, job = make_stage(models=("m", "k")), make_job()
    assert policy.key(stage, job, predict(40, totals={"m": 900, "k": 5}), 0.0) == 900.0
    assert policy.key(stage, job, predict(40), 0.0) == 40.0
    assert policy.key(stage, job, predict(40, totals={"m": 3}), 0.0) == 40.0


def test_aging_of_tokens_runs_at_the_same_speed_as_that_of_seconds() -> None:
    policy = Stjf(limited(aging_s=0.1))
    keys = [policy.key(make_stage(arrival_s=t), make_job(), predict(0), 0.0) for t in (0, 10)]
    assert keys[1] - keys[0] == pytest.approx(0.1 * 10 / TOKEN_S)


def test_oracle_srtf_is_the_time_to_decode_all_that_is_left() -> None:
    policy = OracleSrtf(NO_AGING)
    policy.use(make_costs())
    stage = make_stage(prompt_tokens=100)
    key = policy.key(stage, make_job(), predict(40, totals={"m": 1000}), 0.0)
    assert key == pytest.approx(0.04 + 0.2 + 42.0)
