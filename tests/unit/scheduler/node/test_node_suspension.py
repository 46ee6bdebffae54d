"""Levels 3 to 5, issued by a plan: suspension and its deadline, killed starts, aborted stages."""

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import StageId, TimerId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import GIB
from maestroctl.scheduler.effects import (
    AbortStage,
    ForwardStage,
    ResumeEngine,
    SetTimer,
    StartEngine,
    StopEngine,
    SuspendEngine,
)
from maestroctl.scheduler.events import StageWithdrawn
from maestroctl.scheduler.node.claims import list_claims
from maestroctl.scheduler.node.degradation import DegradationPlan, DegradationStep
from maestroctl.scheduler.node.residency import GiveWayAction, VictimView
from maestroctl.testing.builders import HOST_SLEEPER, NodeScript, engine_of

A, B = engine_of("a"), engine_of("b")
S = EngineStatus


class ByHand:
    """A policy that takes one action on whoever can do it, while it is told to."""

    def __init__(self, action: GiveWayAction) -> None:
        self.action: GiveWayAction | None = action

    def plan(self, _deficit, ranked, _host_free_bytes, **_options):
        for view in ranked:
            step = self._step(view)
            if step is not None:
                return DegradationPlan((step,))
        return None

    def _step(self, view: VictimView) -> DegradationStep | None:
        for choice in view.choices:
            if choice.action is self.action:
                return DegradationStep(view.engine_id, choice)
        return None


def suspend_a() -> NodeScript:
    """`a` is suspended with stage 1 open, for `b`, which serves stage 2."""
    script = NodeScript(degradation=ByHand(GiveWayAction.SUSPEND)).awake("a")
    script.offer("1", "a")
    assert script.offer("2", "b") == [SuspendEngine(A, 1, 2)]
    assert script.booked() == 7 * GIB
    resume_by = SetTimer(TimerId(f"resume:{A}"), 30.0)
    effects = script.finish("a")
    assert resume_by in effects
    assert [type(e) for e in effects if e != resume_by] == [StartEngine]
    script.finish("b")
    assert script.engine("a").num_running == 1
    return script


def test_suspended_engine_keeps_its_requests_and_its_context_only():
    script = suspend_a()
    assert script.status("a") is S.SUSPENDED
    assert script.booked() == (1 + 7) * GIB


def test_suspended_engine_resumes_when_memory_is_free_and_its_requests_go_on():
    script = suspend_a()
    script.core._state.degradation.action = GiveWayAction.SLEEP
    script.leave("2")
    assert script.status("b") is S.FALLING_ASLEEP
    (resume,) = script.finish("b")
    assert isinstance(resume, ResumeEngine)
    assert script.booked() == (1 + 7) * GIB
    assert script.finish("a") == []
    assert script.status("a") is S.ACTIVE
    assert script.leave("1") == []
    assert script.status("a") is S.IDLE


def test_stage_offered_to_a_suspended_engine_waits_for_its_resumption():
    script = suspend_a()
    script.core._state.degradation.action = GiveWayAction.SLEEP
    assert script.offer("3", "a") == []
    script.leave("2")
    script.finish("b")
    assert script.finish("a") == [ForwardStage(StageId("3"), A, 1)]


def test_past_its_deadline_the_suspended_engine_precedes_every_claim_and_drains_the_busy_one():
    script = suspend_a()
    script.core._state.degradation.action = None  # nobody gives way
    script.offer("3", "c")
    script.fire(f"resume:{A}")
    claims = list_claims(script.core._state, script.core._state.engines.values())
    assert [claim.engine.model for claim in claims] == ["a", "c"]
    script.core._state.degradation.action = GiveWayAction.SLEEP
    script.leave("2")  # b is free to go: for a, although c has waited too
    (resume,) = [e for e in script.finish("b") if isinstance(e, ResumeEngine)]
    assert resume.engine_id == A


def test_frozen_request_that_is_withdrawn_leaves_nothing_to_resume_for():
    script = suspend_a()
    script.core._state.degradation.action = GiveWayAction.SLEEP
    script.do(StageWithdrawn(StageId("1")))
    script.leave("2")
    assert script.status("a") is S.SUSPENDED
    assert script.status("b") is S.IDLE


def test_engine_is_not_suspended_into_host_memory_that_is_not_free_and_serves_on():
    options = {"abilities": HOST_SLEEPER, "host": 3 * GIB}  # its weights would take 4
    script = NodeScript(degradation=ByHand(GiveWayAction.SUSPEND), **options).awake("a")
    script.offer("1", "a")
    assert script.offer("2", "b") == []
    assert script.status("a") is S.DRAINING
    script.do(StageWithdrawn(StageId("2")))
    assert script.status("a") is S.ACTIVE


def test_failed_suspension_ends_the_requests_and_stops_the_engine():
    script = NodeScript(degradation=ByHand(GiveWayAction.SUSPEND)).awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    effects = script.fail("a", alive=True)
    reason = "engine of 'a': suspend failed: boom"
    assert effects == [AbortStage(StageId("1"), Outcome.FAILED, reason), StopEngine(A, 1, 3)]


def test_failed_resumption_ends_the_requests_visibly():
    script = suspend_a()
    script.core._state.degradation.action = GiveWayAction.SLEEP
    script.leave("2")
    script.finish("b")
    effects = script.fail("a", alive=False)
    assert AbortStage(StageId("1"), Outcome.FAILED, "engine of 'a': resume failed: boom") in effects
    assert script.status("a") is S.STOPPED


def test_aborted_stages_leave_before_their_engine_stops():
    script = NodeScript(degradation=ByHand(GiveWayAction.ABORT)).awake("a")
    script.offer("1", "a")
    abort = AbortStage(StageId("1"), Outcome.PREEMPTED, "its memory was needed")
    assert script.offer("2", "b") == [abort]
    assert script.status("a") is S.DRAINING
    script.core._state.degradation.action = GiveWayAction.STOP
    assert script.leave("1") == [StopEngine(A, 1, 2)]


def test_start_for_younger_waiters_may_be_killed_and_an_older_one_may_not():
    script = NodeScript(degradation=ByHand(GiveWayAction.KILL_START))
    script.offer("1", "a")
    script.wait(1)
    script.offer("2", "b")
    assert script.status("a") is S.STARTING
    script.do(StageWithdrawn(StageId("1")))  # now it starts for nobody
    assert script.status("a") is S.STOPPING
    script.finish("a")
    assert script.status("b") is S.STARTING


def test_wake_by_hand_resumes_a_suspended_engine():
    script = suspend_a()
    script.core._state.degradation.action = GiveWayAction.SLEEP
    script.ask(1, ModelAction.WAKE, "a")
    script.leave("2")
    script.finish("b")
    (answer,) = script.finish("a")
    assert (answer.request_id, answer.error) == (1, None)
