"""By the deadline while all can be kept, small jobs first once not; a share for the late ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from maestroctl.domain.ids import JobId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.coordinator_state import LATE_RANK, StageState
from maestroctl.scheduler.effects import DispatchStage
from maestroctl.scheduler.events import StageEnded
from maestroctl.scheduler.execution_profile import ExecutionProfile
from maestroctl.scheduler.ordering.edf import NO_DEADLINE_S
from maestroctl.scheduler.ordering.oracle_slo import OracleSlo
from maestroctl.scheduler.ordering.slack import MEMORY_JOBS, PRICE_S, Slack
from maestroctl.scheduler.ordering.workflow_slo import WorkflowSlo
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator
from tests.unit.scheduler.ordering.support import make_costs, make_job, predict

POLICY = PolicySpec(ordering="workflow_slo")


def _given_up(policy: Slack, number: int) -> None:
    """`number` jobs come and turn out to be hopeless."""
    for n in range(number):
        job = make_job(f"lost{n}", deadline_s=1.0)
        stage = make_stage(f"lost{n}", job=job.job_id)
        key = policy.key(stage, job, predict(100), 0.0)
        assert policy.late_key(StageState(stage, predict(100), job, key), 50.0) is not None


def _key(policy: Slack, deadline_s: float, tokens: float) -> float:
    return policy.key(make_stage(), make_job(deadline_s=deadline_s), predict(tokens), 0.0)


def test_while_nobody_is_given_up_the_deadline_alone_counts() -> None:
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs())
    assert _key(policy, 50.0, 9000) == pytest.approx(50.0)
    assert _key(policy, 50.0, 9000) < _key(policy, 60.0, 1)


def test_the_remaining_time_weighs_as_much_as_jobs_are_given_up() -> None:
    policy = OracleSlo(POLICY)
    policy.use(make_costs())
    _given_up(policy, 20)
    assert policy.weight == pytest.approx(PRICE_S * 20 / MEMORY_JOBS, rel=0.1)
    stage = make_stage(prompt_tokens=0)
    told = predict(1, totals={"m": 1000})
    key = policy.key(stage, make_job(deadline_s=100.0), told, 0.0)
    assert key == pytest.approx(100.0 + policy.weight * (0.04 + 42.0))


def test_under_overload_the_smaller_goes_first_and_of_one_size_the_earlier_deadline() -> None:
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs())
    _given_up(policy, 40)
    assert _key(policy, 50.0, 100) < _key(policy, 60.0, 100)
    assert _key(policy, 60.0, 100) < _key(policy, 50.0, 200)


def test_the_weight_falls_again_as_jobs_come_that_are_kept() -> None:
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs())
    _given_up(policy, 20)
    before = policy.weight
    for n in range(MEMORY_JOBS):
        policy.key(make_stage(f"s{n}"), make_job(f"kept{n}", deadline_s=1e6), predict(1), 0.0)
    assert policy.weight == pytest.approx(before / math.e, rel=0.01)


def test_a_job_is_given_up_once_however_many_of_its_stages_are_late() -> None:
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs())
    _given_up(policy, 1)
    before = policy.weight
    job = make_job("lost0", deadline_s=1.0)
    stage = make_stage("again", job=job.job_id)
    assert policy.late_key(StageState(stage, predict(9), job, 0.0), 50.0) is not None
    assert policy.weight == before


def test_a_predicted_total_stands_for_the_job_and_the_profile_for_one_without() -> None:
    profile = ExecutionProfile()
    for number in range(64):
        job = JobId(f"j{number}")
        stages = [replace(make_stage(role=r, job=job), workflow="w", step=r) for r in "abc"]
        profile.stage_ended(stages[0], 1.0, 0.0)
        for branch in stages[1:]:
            profile.stage_ended(branch, 30.0, 1.0)  # side by side: they count once
        profile.job_finished(job)
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs(profile))
    stage = replace(make_stage(role="a", prompt_tokens=0), workflow="w", step="a")
    assert 25.0 < policy.remaining_s(stage, predict(0)) < 45.0
    both_s = 0.04 + 100 * 0.042
    told_s = policy.remaining_s(stage, predict(0, totals={"m": 100}))
    assert told_s == pytest.approx(both_s / 2, rel=0.05), "two branches side by side count once"
    chain = replace(stage, workflow="another")
    assert policy.remaining_s(chain, predict(0, totals={"m": 100})) == pytest.approx(both_s)


def test_a_fan_out_is_not_late_by_the_sum_of_its_branches() -> None:
    profile = ExecutionProfile()
    for number in range(64):
        job = JobId(f"j{number}")
        plan, part = (
            replace(make_stage(role=role, job=job), workflow="w", step=role)
            for role in ("plan", "part")
        )
        profile.stage_ended(plan, 2.0, 0.0)
        for _ in range(10):
            profile.stage_ended(part, 10.0, 2.0)
        profile.job_finished(job)
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs(profile))
    stage = replace(make_stage(role="plan", prompt_tokens=0), workflow="w", step="plan")
    told = predict(50, totals={"m": 50 + 10 * 240})
    assert policy.late_key(StageState(stage, told, make_job(deadline_s=60.0), 0.0), 0.0) is None
    assert policy.late_key(StageState(stage, told, make_job(deadline_s=5.0), 0.0), 0.0) is not None


def test_without_a_deadline_the_shortest_goes_first_after_those_with_one() -> None:
    policy = WorkflowSlo(POLICY)
    short, long = (policy.key(make_stage(), make_job(), predict(n), 0.0) for n in (10, 900))
    assert NO_DEADLINE_S <= short < long
    state = StageState(make_stage(), predict(10), make_job(), short)
    assert policy.late_key(state, 1e9) is None


def test_a_stage_is_late_once_even_alone_it_would_end_after_the_deadline() -> None:
    policy = WorkflowSlo(POLICY)
    policy.use(make_costs())
    stage = make_stage(prompt_tokens=0)
    job = make_job(deadline_s=100.0)
    state = StageState(stage, predict(1000, 9000), job, 0.0)
    latest_s = 100.0 - policy.remaining_s(stage, predict(1000))
    assert policy.late_key(state, latest_s - 0.01) is None
    late = policy.late_key(state, latest_s + 0.01)
    assert late is not None
    assert late > NO_DEADLINE_S
    other = policy.late_key(StageState(stage, predict(10), job, 0.0), 99.9)
    assert other is not None
    assert other < late


class Line:
    """One slot of one engine under `workflow_slo`; stages run one after the other."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.tell = coordinator.tell
        self.core = coordinator.core
        self.attempts: dict[str, int] = {}

    def arrive(self, name: str, deadline_s: float | None, at_s: float = 0.0) -> list[str]:
        stage = replace(make_stage(name, prompt_tokens=0, arrival_s=at_s), deadline_s=deadline_s)
        return self._sent(self.tell(arrival(stage, predict(10)), at_s))

    def end(self, name: str, at_s: float) -> list[str]:
        event = StageEnded(
            make_stage(name).stage_id, self.attempts[name], Outcome.FINISHED, True, Usage(1, 10)
        )
        return self._sent(self.tell(event, at_s))

    def _sent(self, effects: Sequence[object]) -> list[str]:
        sent = [effect for effect in effects if isinstance(effect, DispatchStage)]
        self.attempts.update({effect.stage_id: effect.attempt for effect in sent})
        return [effect.stage_id for effect in sent]


@pytest.fixture
def line(coordinator: Coordinator) -> Line:
    coordinator.begin(make_fleet(policy=POLICY), max_queued=1000)
    coordinator.tell(node_says(make_snapshot(engines=[make_engine(slots=1)])))
    return Line(coordinator)


def test_a_late_stage_makes_way_for_those_that_can_be_in_time(line: Line) -> None:
    assert line.arrive("now", 50.0) == ["now"]
    line.arrive("hopeless", 5.0)
    line.arrive("hopeful", 60.0)
    assert line.end("now", 10.0) == ["hopeful"]
    assert line.end("hopeful", 11.0) == ["hopeless"]


def test_a_stage_that_is_not_late_yet_keeps_its_turn(line: Line) -> None:
    line.arrive("now", 50.0)
    line.arrive("soon", 20.0)
    line.arrive("hopeful", 60.0)
    assert line.end("now", 10.0) == ["soon"]


def test_late_stages_get_one_dispatch_in_about_twenty(line: Line) -> None:
    running = line.arrive("first", 1e6)[0]
    for number in range(20):
        line.arrive(f"late{number:02}", 5.0)
    for number in range(300):
        line.arrive(f"in-time{number:03}", 1e6 + number)
    order = []
    for number in range(200):
        running = line.end(running, 10.0 + number)[0]
        order.append(running)
    late = [name for name in order if name.startswith("late")]
    assert len(late) == 200 // 21
    gaps = [order.index(b) - order.index(a) for a, b in pairwise(late)]
    assert set(gaps) == {21}


def test_late_stages_are_all_served_when_nobody_else_waits(line: Line) -> None:
    running = line.arrive("first", 1e6)[0]
    for number in range(5):
        line.arrive(f"late{number}", 5.0)
    served = []
    for number in range(5):
        running = line.end(running, 10.0 + number)[0]
        served.append(running)
    assert sorted(served) == [f"late{number}" for number in range(5)]


def test_a_late_stage_is_shown_as_waiting_behind_the_others(line: Line) -> None:
    line.arrive("now", 50.0)
    line.arrive("hopeless", 5.0)
    for name in ("a", "b"):
        line.arrive(name, 60.0)
    line.end("now", 10.0)
    assert [view.stage_id for view in line.core.queued()] == ["b", "hopeless"]
    late = line.core._tables.stages[make_stage("hopeless").stage_id]
    assert late.rank == LATE_RANK
