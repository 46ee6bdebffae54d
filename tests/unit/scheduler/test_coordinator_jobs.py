"""Jobs: submitted, resumed, finished once, cancelled, failed; and jobs known by stages alone."""

from __future__ import annotations

import pytest

from maestroctl.domain.ids import JobId, NodeName, StageId, TimerId
from maestroctl.domain.outcome import JobStatus, Outcome
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_jobs import FORGET_AFTER_S, MAX_FINISHED, MAX_IDLE_JOBS
from maestroctl.scheduler.coordinator_state import MAX_ROLES
from maestroctl.scheduler.effects import (
    CancelTimer,
    DispatchStage,
    FinishJob,
    PrepareStep,
    ResolveStage,
    RunStep,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    JobCancelled,
    ShutdownRequested,
    StageCancelled,
    StageEnded,
    StepFailed,
    StepPrepared,
    StepRef,
    StepResult,
    ToolsRan,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    fingerprint,
    make_stage,
    make_step,
    make_workflow,
    step_done,
    submission,
)
from tests.unit.scheduler.conftest import Coordinator

JOB = JobId("j")
TWO_STEPS = make_workflow(make_step("plan"), make_step("code", ["plan"]))
FAN = make_workflow(
    make_step("plan"), make_step("work", ["plan"], fan_out=True), make_step("join", ["work"])
)


def sid(name: str) -> StageId:
    return StageId(name)


def prepare(step: str, visit: int = 1) -> PrepareStep:
    return PrepareStep(JOB, step, visit)


def run(step: str, visit: int = 1, item: int = 0) -> RunStep:
    return RunStep(JOB, StepRef(step, visit, item))


def prepared(step: str, visit: int = 1, num_items: int = 1) -> StepPrepared:
    return StepPrepared(JOB, step, visit, num_items)


def stage_of_job(name: str, external: bool = False) -> object:
    return arrival(make_stage(name, job="j", external=external))


def test_a_job_runs_step_by_step_and_finishes_once(coordinator: Coordinator) -> None:
    assert coordinator.tell(submission(TWO_STEPS)) == [prepare("plan")]
    assert coordinator.tell(prepared("plan")) == [run("plan")]
    assert coordinator.tell(step_done("plan")) == [prepare("code")]
    assert coordinator.tell(prepared("code")) == [run("code")]
    assert coordinator.tell(step_done("code")) == [FinishJob(JOB, JobStatus.FINISHED)]
    assert coordinator.core.job(JOB) is None
    assert coordinator.tell(step_done("code")) == []
    assert coordinator.tell(submission(TWO_STEPS)) == []
    assert coordinator.core.counters.stale == 2


def test_a_fan_out_is_joined_when_all_items_are_done(coordinator: Coordinator) -> None:
    coordinator.tell(submission(FAN, finished=[StepResult(StepRef("plan"))]))
    assert coordinator.tell(prepared("work", num_items=3)) == [
        run("work", item=0),
        run("work", item=1),
        run("work", item=2),
    ]
    assert coordinator.tell(step_done("work", item=2, num_items=3)) == []
    assert coordinator.tell(step_done("work", item=0, num_items=3)) == []
    assert coordinator.tell(step_done("work", item=1, num_items=3)) == [prepare("join")]


def test_a_fan_out_over_nothing_counts_as_finished(coordinator: Coordinator) -> None:
    coordinator.tell(submission(FAN, finished=[StepResult(StepRef("plan"))]))
    assert coordinator.tell(prepared("work", num_items=0)) == [prepare("join")]


def test_a_workflow_without_steps_is_finished_at_once(coordinator: Coordinator) -> None:
    assert coordinator.tell(submission(make_workflow())) == [FinishJob(JOB, JobStatus.FINISHED)]


def test_a_job_that_had_finished_every_step_only_lacks_its_end(coordinator: Coordinator) -> None:
    done = [StepResult(StepRef("plan")), StepResult(StepRef("code"))]
    assert coordinator.tell(submission(TWO_STEPS, finished=done)) == [
        FinishJob(JOB, JobStatus.FINISHED)
    ]


def test_a_workflow_that_has_no_meaning_fails_with_the_reason(coordinator: Coordinator) -> None:
    circle = make_workflow(make_step("a", ["b"]), make_step("b", ["a"]))
    assert coordinator.tell(submission(circle)) == [
        FinishJob(JOB, JobStatus.FAILED, "step: steps wait for each other in a circle: 'a', 'b'")
    ]
    assert coordinator.core.job(JOB) is None


def test_a_failed_step_fails_the_job_and_cancels_its_siblings(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(FAN, finished=[StepResult(StepRef("plan"))]))
    coordinator.tell(prepared("work", num_items=3))
    for name in ("s1", "s2", "s3"):
        coordinator.tell(stage_of_job(name))  # type: ignore[arg-type]
    coordinator.tell(arrival(make_stage("other", arrival_s=9.0)), 9.0)
    coordinator.tell(StageEnded(sid("s1"), 1, Outcome.INVALID, True), 9.0)
    failed = StepFailed(JOB, StepRef("work", 1, 0), Outcome.INVALID, "400")
    why = "step work: 400"
    effects = coordinator.tell(failed, 9.0)
    assert [e for e in effects if not isinstance(e, DispatchStage)] == [
        WithdrawStage(sid("s2"), 1, NodeName("n1")),
        ResolveStage(sid("s2"), Outcome.CANCELLED, why),
        WithdrawStage(sid("s3"), 1, NodeName("n1")),
        ResolveStage(sid("s3"), Outcome.CANCELLED, why),
        FinishJob(JOB, JobStatus.FAILED, why),
    ]
    assert effects[-1].stage_id == "other"  # type: ignore[union-attr]
    assert coordinator.tell(failed, 9.0) == []


def test_a_cancelled_job_leaves_nothing_behind(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(TWO_STEPS))
    coordinator.tell(prepared("plan"))
    for name in ("s1", "s2", "s3"):
        coordinator.tell(stage_of_job(name))  # type: ignore[arg-type]
    assert coordinator.tell(JobCancelled(JOB, "by hand")) == [
        WithdrawStage(sid("s1"), 1, NodeName("n1")),
        ResolveStage(sid("s1"), Outcome.CANCELLED, "by hand"),
        WithdrawStage(sid("s2"), 1, NodeName("n1")),
        ResolveStage(sid("s2"), Outcome.CANCELLED, "by hand"),
        ResolveStage(sid("s3"), Outcome.CANCELLED, "by hand"),
        FinishJob(JOB, JobStatus.CANCELLED, "by hand"),
    ]
    assert coordinator.tell(JobCancelled(JOB)) == []


def test_a_late_stage_of_a_finished_job_is_cancelled(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(TWO_STEPS))
    coordinator.tell(JobCancelled(JOB))
    assert coordinator.tell(stage_of_job("late")) == [  # type: ignore[arg-type]
        ResolveStage(sid("late"), Outcome.CANCELLED, "its job is over")
    ]


def test_an_outside_stage_in_a_jobs_name_outlives_its_success(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(make_workflow(make_step("one"))))
    coordinator.tell(prepared("one"))
    coordinator.tell(stage_of_job("outside", external=True))  # type: ignore[arg-type]
    coordinator.tell(stage_of_job("inside"))  # type: ignore[arg-type]
    assert coordinator.tell(step_done("one")) == [
        WithdrawStage(sid("inside"), 1, NodeName("n1")),
        ResolveStage(sid("inside"), Outcome.CANCELLED, "its job is over"),
        FinishJob(JOB, JobStatus.FINISHED),
    ]
    assert coordinator.tell(submission(TWO_STEPS)) == []
    assert coordinator.tell(StageEnded(sid("outside"), 1, Outcome.FINISHED, True)) == [
        ResolveStage(sid("outside"), Outcome.FINISHED)
    ]
    assert coordinator.core.job(JOB) is None


def test_a_submission_takes_over_the_stages_under_its_id(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(stage_of_job("early", external=True))  # type: ignore[arg-type]
    assert coordinator.tell(submission(TWO_STEPS)) == [prepare("plan")]
    job = coordinator.core.job(JOB)
    assert job is not None
    assert (job.is_workflow, job.live_stages) == (True, ("early",))


def test_a_list_that_changed_over_a_restart_fails_the_job(coordinator: Coordinator) -> None:
    done = [StepResult(StepRef("plan")), StepResult(StepRef("work", 1, 2), 3)]
    assert coordinator.tell(submission(FAN, finished=done)) == [prepare("work")]
    (finish,) = coordinator.tell(prepared("work", num_items=2))
    assert isinstance(finish, FinishJob)
    assert finish.status is JobStatus.FAILED
    assert "made 2 items, but 3 before the restart" in finish.reason


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(prepared("code"), id="a step nobody asked for"),
        pytest.param(prepared("plan", 2), id="a visit to come"),
        pytest.param(prepared("plan", 1, -1), id="fewer than no items"),
        pytest.param(prepared("nowhere"), id="an unknown step"),
        pytest.param(step_done("plan"), id="finished before it was prepared"),
        pytest.param(StepFailed(JOB, StepRef("code"), Outcome.FAILED, ""), id="not running"),
    ],
)
def test_the_impossible_raises_and_changes_nothing(coordinator: Coordinator, event: object) -> None:
    coordinator.tell(submission(TWO_STEPS))
    before = fingerprint(coordinator.core)
    with pytest.raises(InvariantViolation, match="job j") as caught:
        coordinator.core.handle(event, 1.0)  # type: ignore[arg-type]
    assert caught.value.story == (
        "plan: preparing, visit 1, 0 items left",
        "code: waiting, visit 1, 0 items left",
    )
    assert fingerprint(coordinator.core) == before


def test_an_event_for_the_node_core_is_refused(coordinator: Coordinator) -> None:
    with pytest.raises(InvariantViolation, match="is not told NoneType"):
        coordinator.core.handle(None, 0.0)  # type: ignore[arg-type]


# --- shutting down ------------------------------------------------------------------------------


def test_a_drain_leaves_jobs_running_and_starts_nothing(coordinator: Coordinator) -> None:
    coordinator.tell(submission(TWO_STEPS))
    coordinator.tell(prepared("plan"))
    coordinator.tell(ShutdownRequested(True))
    assert coordinator.tell(submission(FAN, job="k")) == []
    interrupted = StepFailed(JOB, StepRef("plan"), Outcome.INTERRUPTED, "shutting down")
    assert coordinator.tell(interrupted) == []
    assert coordinator.tell(step_done("plan")) == []
    assert coordinator.core.job(JOB) is not None


def test_a_job_may_still_end_during_a_drain(coordinator: Coordinator) -> None:
    done = [StepResult(StepRef("plan"))]
    coordinator.tell(submission(TWO_STEPS, finished=done))
    coordinator.tell(prepared("code"))
    coordinator.tell(ShutdownRequested(True))
    assert coordinator.tell(step_done("code")) == [FinishJob(JOB, JobStatus.FINISHED)]


def test_a_real_failure_during_a_drain_fails_the_job(coordinator: Coordinator) -> None:
    coordinator.tell(submission(TWO_STEPS))
    coordinator.tell(ShutdownRequested(True))
    failed = StepFailed(JOB, StepRef("plan"), Outcome.INVALID, "400")
    assert coordinator.tell(failed) == [FinishJob(JOB, JobStatus.FAILED, "step plan: 400")]


# --- jobs known by their stages alone -----------------------------------------------------------


def test_requests_under_one_job_id_share_positions_and_service(coordinator: Coordinator) -> None:
    coordinator.connect()
    assert coordinator.core.next_position(JOB, "coder") == (0, 0)
    for number, role in enumerate(["planner", "coder", "coder"]):
        coordinator.tell(arrival(make_stage(f"s{number}", job="j", role=role)))
        coordinator.tell(StageEnded(sid(f"s{number}"), 1, Outcome.FINISHED, True), 2.0)
    coordinator.tell(ToolsRan(JOB, "coder", 1.5))
    assert coordinator.core.next_position(JOB, "coder") == (3, 2)
    assert coordinator.core.next_position(JOB, "tester") == (3, 0)
    job = coordinator.core.job(JOB)
    assert job is not None
    assert (job.attained_s, job.is_workflow) == (2.0 + 2.0 + 2.0 + 1.5, False)


def test_cancelling_such_a_job_ends_its_stages_and_nothing_else(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(stage_of_job("s1", external=True))  # type: ignore[arg-type]
    assert coordinator.tell(JobCancelled(JOB, "by hand")) == [
        WithdrawStage(sid("s1"), 1, NodeName("n1")),
        ResolveStage(sid("s1"), Outcome.CANCELLED, "by hand"),
    ]


def test_an_idle_job_is_forgotten_after_half_an_hour(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(stage_of_job("s1", external=True))  # type: ignore[arg-type]
    coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FINISHED, True), 10.0)
    coordinator.tell(arrival(make_stage("s2")), 10.0 + FORGET_AFTER_S - 1)
    assert coordinator.core.job(JOB) is not None
    coordinator.tell(arrival(make_stage("s3")), 10.0 + FORGET_AFTER_S)
    assert coordinator.core.job(JOB) is None


def test_a_job_with_a_live_stage_is_not_forgotten(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(stage_of_job("s1", external=True))  # type: ignore[arg-type]
    coordinator.tell(arrival(make_stage("s2")), 10 * FORGET_AFTER_S)
    assert coordinator.core.job(JOB) is not None


def test_many_requests_leave_a_bounded_memory(coordinator: Coordinator) -> None:
    core = coordinator.core
    coordinator.connect()
    for number in range(MAX_IDLE_JOBS + 500):
        core.handle(arrival(make_stage(f"s{number}")), number * 1e-3)
        core.handle(StageEnded(sid(f"s{number}"), 1, Outcome.FINISHED, True), number * 1e-3)
    assert len(core._tables.jobs) == MAX_IDLE_JOBS
    core.validate()
    for number in range(MAX_FINISHED + 50):
        core.handle(submission(make_workflow(), job=f"w{number}"), 9.0)
    assert len(core._tables.jobs._finished) == MAX_FINISHED


def test_a_caller_that_invents_roles_does_not_grow_memory(coordinator: Coordinator) -> None:
    coordinator.connect()
    for number in range(MAX_ROLES + 9):
        coordinator.tell(arrival(make_stage(f"s{number}", job="j", role=f"role{number}")))
        coordinator.tell(StageCancelled(sid(f"s{number}")))
    job = coordinator.core.job(JOB)
    assert job is not None
    assert (len(job.roles), job.num_stages) == (MAX_ROLES, MAX_ROLES + 9)


def test_queued_deadlines_of_stages_that_are_gone_are_swept(coordinator: Coordinator) -> None:
    coordinator.begin(max_queued=10)
    coordinator.connect()
    for name in ("a", "b"):
        coordinator.tell(arrival(make_stage(name)))
    for number in range(3000):
        coordinator.core.handle(arrival(make_stage(f"s{number}")), 1.0)
        coordinator.core.handle(StageCancelled(sid(f"s{number}")), 1.0)
    assert len(coordinator.core._waiting.patience._deadlines) < 1100


def test_the_story_of_a_job_and_its_stage_can_be_told(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(make_workflow(make_step("one"))), 1.0)
    coordinator.tell(JobCancelled(JOB, "by hand"), 2.0)
    assert coordinator.core.story("j") == (
        "1.000000 submitted: flow",
        "2.000000 cancelled: by hand",
    )


def test_effects_for_a_parked_stage_of_a_cancelled_job(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(submission(make_workflow(make_step("one"))))
    coordinator.tell(prepared("one"))
    coordinator.tell(stage_of_job("s1"))  # type: ignore[arg-type]
    assert coordinator.tell(StageEnded(sid("s1"), 1, Outcome.FAILED, False), 1.0) == [
        SetTimer(TimerId("pause/s1"), 1.25)
    ]
    assert coordinator.tell(JobCancelled(JOB, "by hand"), 1.1) == [
        CancelTimer(TimerId("pause/s1")),
        ResolveStage(sid("s1"), Outcome.CANCELLED, "by hand"),
        FinishJob(JOB, JobStatus.CANCELLED, "by hand"),
    ]
