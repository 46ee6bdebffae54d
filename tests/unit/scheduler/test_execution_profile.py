"""The rolling execution profile: samples, shrinkage, fan-outs, bounds."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.stage import StageDescriptor
from maestroctl.scheduler.events import StageEnded, StepPrepared, ToolsRan
from maestroctl.scheduler.execution_profile import (
    FLEET_WINDOW,
    MAX_MARKS,
    MAX_STATES,
    MAX_WORKFLOWS,
    SHRINKAGE,
    WINDOW,
    ExecutionProfile,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_stage,
    make_step,
    make_workflow,
    step_done,
    submission,
)
from tests.unit.scheduler.conftest import Coordinator


def stage_of(job: str, step: str, workflow: str = "flow", visits: int = 0) -> StageDescriptor:
    stage = make_stage(f"{job}/{step}/{visits}", job, role=step)
    return replace(stage, workflow=workflow, step=step, invocation_index=visits)


def play(profile: ExecutionProfile, job: str, *steps: tuple[str, float]) -> None:
    """A job of steps one after the other, finished."""
    for step, seconds in steps:
        stage = stage_of(job, step)
        profile.stage_ended(stage, seconds, profile.path_s(stage.job_id))
    profile.job_finished(JobId(job))


def test_nothing_follows_as_long_as_nothing_is_known() -> None:
    assert ExecutionProfile().future_work_s(stage_of("j", "a")) == 0.0


def test_what_followed_a_state_is_learnt_when_the_job_has_finished() -> None:
    profile = ExecutionProfile()
    for number in range(60):
        play(profile, f"j{number}", ("a", 1.0), ("b", 3.0), ("c", 5.0))
    assert profile.future_work_s(stage_of("x", "a")) == pytest.approx(8.0, rel=0.1)
    assert profile.future_work_s(stage_of("x", "b")) == pytest.approx(5.0, rel=0.1)
    assert profile.future_work_s(stage_of("x", "c")) < 0.5


def test_tools_count_and_come_after_the_stage_that_called_them() -> None:
    profile = ExecutionProfile()
    profile.stage_ended(stage_of("j", "a"), 1.0, 0.0)
    profile.tools_ran(JobId("j"), "a", 2.0)
    assert profile.path_s(JobId("j")) == 3.0
    profile.job_finished(JobId("j"))
    thin = 1 / (1 + SHRINKAGE)
    weights = thin + (1 - thin) * (thin + (1 - thin) * thin)
    assert profile.future_work_s(stage_of("x", "a")) == pytest.approx(2.0 * weights)


def test_a_thin_state_leans_on_its_workflow_and_that_on_the_fleet() -> None:
    profile = ExecutionProfile()
    for number in range(30):
        play(profile, f"j{number}", ("a", 1.0), ("b", 10.0))
    fleet = profile.future_work_s(stage_of("x", "new", workflow="other"))
    flow = profile.future_work_s(stage_of("x", "new"))
    own = profile.future_work_s(stage_of("x", "a"))
    assert 0.0 < fleet < flow < own < 10.0


def test_branches_add_to_the_work_and_not_to_the_path() -> None:
    profile = ExecutionProfile()
    for number in range(60):
        job = f"j{number}"
        profile.stage_ended(stage_of(job, "plan"), 1.0, 0.0)
        ready_s = profile.path_s(JobId(job))
        for branch, seconds in (("left", 4.0), ("right", 6.0)):
            profile.stage_ended(stage_of(job, branch), seconds, ready_s)
        assert profile.path_s(JobId(job)) == 7.0
        profile.job_finished(JobId(job))
    plan = stage_of("x", "plan")
    assert profile.future_work_s(plan) == pytest.approx(10.0, rel=0.12)
    assert profile.future_path_s(plan) == pytest.approx(6.0, rel=0.12)


def test_a_job_that_broke_says_nothing_of_what_follows() -> None:
    profile = ExecutionProfile()
    profile.stage_ended(stage_of("j", "a"), 1.0, 0.0)
    profile.stage_ended(stage_of("j", "b"), 9.0, 1.0)
    profile.job_broken(JobId("j"))
    profile.job_finished(JobId("j"))
    assert profile.future_work_s(stage_of("x", "a")) == 0.0
    assert profile.size() == (0, 0, 0)


def test_old_samples_roll_out() -> None:
    profile = ExecutionProfile()
    for number in range(WINDOW):
        play(profile, f"old{number}", ("a", 1.0), ("b", 100.0))
    for number in range(FLEET_WINDOW):
        play(profile, f"new{number}", ("a", 1.0), ("b", 2.0))
    assert profile.future_work_s(stage_of("x", "a")) == pytest.approx(2.0, rel=0.1)


def test_a_quantile_above_the_median_is_more_careful() -> None:
    profile = ExecutionProfile()
    for number in range(60):
        play(profile, f"j{number}", ("a", 1.0), ("b", float(number)))
    stage = stage_of("x", "a")
    assert profile.future_path_s(stage, 0.75) > profile.future_path_s(stage, 0.5)


def test_memory_does_not_grow_with_states_workflows_or_stages() -> None:
    profile = ExecutionProfile()
    for number in range(MAX_STATES + 100):
        job = f"j{number}"
        stage = stage_of(job, f"s{number}", workflow=f"w{number}")
        profile.stage_ended(stage, 1.0, 0.0)
        profile.job_finished(JobId(job))
    assert profile.size() == (MAX_STATES, MAX_WORKFLOWS, 0)
    for number in range(10 * MAX_MARKS):
        profile.stage_ended(stage_of("long", "a", visits=number), 1.0, float(number))
    profile.job_finished(JobId("long"))
    assert profile.size()[0] == MAX_STATES


def test_the_pace_follows_what_stages_really_take() -> None:
    profile = ExecutionProfile()
    model = ModelName("m")
    assert profile.pace(model) == 1.0
    for _ in range(200):
        profile.note_pace(model, 2.0, 5.0)
    assert profile.pace(model) == pytest.approx(2.5, rel=0.02)
    assert profile.pace(ModelName("k")) == 1.0


def test_the_median_agrees_with_the_library() -> None:
    profile = ExecutionProfile()
    values = [float((number * 37) % 64) for number in range(WINDOW)]
    for number, value in enumerate(values):
        play(profile, f"j{number}", ("a", 1.0), ("b", value))
    # The parents' part is the same for both states; the state's own part is n / (n + K).
    fresh = profile.future_work_s(stage_of("x", "new"))
    own = profile.future_work_s(stage_of("x", "a"))
    expected = (WINDOW * statistics.median(values) + SHRINKAGE * fresh) / (WINDOW + SHRINKAGE)
    assert own == pytest.approx(expected)


def test_the_core_feeds_it_without_queueing_and_wakes(coordinator: Coordinator) -> None:
    coordinator.connect()
    for number in range(40):
        job = f"j{number}"
        flow = make_workflow(make_step("a"), make_step("b", after=["a"]))
        coordinator.tell(submission(flow, job), 100.0 * number)
        for step, begin_s in (("a", 1.0), ("b", 10.0)):
            at_s = 100.0 * number + begin_s
            coordinator.tell(StepPrepared(JobId(job), step, 1, 1), at_s)
            stage = replace(stage_of(job, step), external=False)
            coordinator.tell(arrival(stage), at_s)
            usage = Usage(50, 40)
            ended = StageEnded(stage.stage_id, 1, Outcome.FINISHED, True, usage)
            coordinator.tell(ended, at_s + 4.0)
            if step == "a":
                coordinator.tell(ToolsRan(JobId(job), "a", 0.5), at_s + 4.5)
            coordinator.tell(step_done(step, job=job), at_s + 4.5)
    profile = coordinator.core._tables.profile
    assert profile.future_work_s(stage_of("x", "a")) == pytest.approx(4.5, rel=0.1)
    assert profile.size()[2] == 0


def test_observations_correct_a_profile_that_was_only_estimated():
    """A geometry estimate three times too fast: after a few stages predictions are right."""
    model, nominal_s, true_s = ModelName("m"), 2.0, 6.0
    profile = ExecutionProfile()
    errors = []
    for _ in range(40):
        errors.append(abs(nominal_s * profile.pace(model) - true_s) / true_s)
        profile.note_pace(model, nominal_s, true_s)
    assert errors[0] > 0.6
    assert errors[10] < 0.1
    assert errors[-1] < 0.05


def test_a_change_of_pace_is_followed_within_some_dozens_of_stages():
    """The profile was right; then another engine joins the device and everything takes twice."""
    model, profile = ModelName("m"), ExecutionProfile()
    for _ in range(50):
        profile.note_pace(model, 2.0, 2.0)
    for _ in range(120):
        profile.note_pace(model, 2.0, 4.0)
    assert 1.85 < profile.pace(model) <= 2.0
