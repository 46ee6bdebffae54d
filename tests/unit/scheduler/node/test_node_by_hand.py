"""Wake, sleep, evict, pin and unpin by hand: each answered exactly once."""

import pytest

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import StageId, TimerId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import GIB
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.effects import (
    AbortStage,
    AnswerModelAction,
    CancelTimer,
    ForwardStage,
    RefuseStage,
    SetTimer,
    SleepEngine,
    StartEngine,
    StopEngine,
    WakeEngine,
)
from maestroctl.testing.builders import ENDPOINT, STARTER, NodeScript, engine_of
from maestroctl.testing.harsh_degradation import HarshDegradation

A, B = engine_of("a"), engine_of("b")
WAKE, SLEEP, EVICT = ModelAction.WAKE, ModelAction.SLEEP, ModelAction.EVICT
PIN, UNPIN = ModelAction.PIN, ModelAction.UNPIN
S = EngineStatus
DISK = ResidencyTier.DISK


def test_wake_is_answered_when_the_engine_is_awake():
    script = NodeScript().asleep("a")
    assert script.ask(1, WAKE, "a") == [WakeEngine(A, 1, 3)]
    assert script.finish("a") == [AnswerModelAction(1)]
    assert script.ask(2, WAKE, "a") == [AnswerModelAction(2, note="is awake already")]


def test_sleep_of_an_idle_engine_is_answered_when_it_sleeps():
    script = NodeScript().awake("a")
    assert script.ask(1, SLEEP, "a") == [SleepEngine(A, 1, 2, DISK)]
    assert script.finish("a") == [AnswerModelAction(1)]
    assert script.ask(2, SLEEP, "a") == [AnswerModelAction(2, note="is asleep already")]


def test_sleep_of_a_busy_engine_drains_it_first_and_holds_what_comes():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    assert script.ask(1, SLEEP, "a") == []
    assert script.offer("2", "a") == []
    assert script.leave("1") == [SleepEngine(A, 1, 2, DISK)]
    assert script.finish("a") == [AnswerModelAction(1), WakeEngine(A, 1, 3)]
    assert script.finish("a") == [ForwardStage(StageId("2"), A, 1)]


def test_sleep_while_waking_serves_the_waiters_first():
    script = NodeScript().asleep("a")
    script.offer("1", "a")
    assert script.ask(1, SLEEP, "a") == []
    assert script.finish("a") == [ForwardStage(StageId("1"), A, 1)]
    assert script.leave("1") == [SleepEngine(A, 1, 4, DISK)]
    assert script.finish("a") == [AnswerModelAction(1)]


def test_evict_stops_and_frees_everything():
    script = NodeScript().asleep("a")
    assert script.ask(1, EVICT, "a") == [StopEngine(A, 1, 3)]
    assert script.finish("a") == [AnswerModelAction(1)]
    assert script.booked() == 0
    assert script.ask(2, EVICT, "a") == [AnswerModelAction(2, note="is stopped; nothing to stop")]


def test_evict_drains_a_busy_engine_first():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    assert script.ask(1, EVICT, "a") == []
    assert script.leave("1") == [StopEngine(A, 1, 2)]
    assert script.finish("a") == [AnswerModelAction(1)]


def test_evict_calls_off_a_start():
    script = NodeScript()
    script.offer("1", "a")
    assert script.ask(1, EVICT, "a") == [
        RefuseStage(StageId("1"), "'a' was evicted by hand", retry_in_s=1.0),
        StopEngine(A, 1, 2),
    ]
    assert script.finish("a") == [AnswerModelAction(1)]


def test_evict_after_sleep_answers_both_when_the_process_is_gone():
    script = NodeScript().awake("a")
    script.ask(1, SLEEP, "a")
    assert script.ask(2, EVICT, "a") == []
    assert script.finish("a") == [AnswerModelAction(1), StopEngine(A, 1, 3)]
    assert script.finish("a") == [AnswerModelAction(2)]


def test_wake_calls_off_a_sleep_that_has_not_begun():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.ask(1, SLEEP, "a")
    assert script.ask(2, WAKE, "a") == [
        AnswerModelAction(1, "called off: woken by hand"),
        AnswerModelAction(2),
    ]
    assert script.status("a") is S.ACTIVE


def test_sleep_calls_off_a_wake_that_waits():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.ask(1, WAKE, "b")
    effects = script.ask(2, SLEEP, "b")
    assert effects[:2] == [
        AnswerModelAction(1, "called off: told to sleep by hand"),
        AnswerModelAction(2, note="is stopped; nothing to put to sleep"),
    ]


def test_wake_waits_like_a_stage_and_makes_room_like_one():
    script = NodeScript().awake("a")
    assert script.ask(1, WAKE, "b") == [SleepEngine(A, 1, 2, DISK)]
    assert [type(e) for e in script.finish("a")] == [StartEngine]
    assert script.finish("b") == [AnswerModelAction(1)]


def test_wake_without_room_is_answered_with_the_shortfall():
    script = NodeScript(specs={"a": {"pin": True}}).awake("a")
    assert script.ask(1, WAKE, "b") == [
        AnswerModelAction(1, "no room for 'b': 4.0 GiB on cpu short")
    ]


def test_wake_that_fails_is_answered_with_the_reason():
    script = NodeScript().asleep("a")
    script.ask(1, WAKE, "a")
    assert AnswerModelAction(1, "engine of 'a': wake failed: boom") in script.fail("a")


def test_sleep_and_evict_of_an_engine_that_failed_say_so():
    script = NodeScript()
    script.ask(1, WAKE, "a")
    script.fail("a", permanent=True)
    assert script.status("a") is S.FAILED
    assert script.ask(2, SLEEP, "a") == [
        AnswerModelAction(2, note="has failed; nothing to put to sleep")
    ]
    assert script.ask(3, EVICT, "a") == [AnswerModelAction(3, note="has failed; nothing to stop")]


def test_a_sleep_that_ends_in_a_stop_says_so():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    assert script.ask(1, SLEEP, "a") == []
    assert script.ask(2, EVICT, "a") == []
    assert script.leave("1") == [StopEngine(A, 1, 2)]
    assert script.finish("a") == [AnswerModelAction(1, note="is stopped"), AnswerModelAction(2)]


def test_pin_and_unpin_say_what_was_so_already():
    script = NodeScript().awake("a")
    assert script.ask(1, UNPIN, "a") == [AnswerModelAction(1, note="is not pinned")]
    assert script.ask(2, PIN, "a") == [AnswerModelAction(2)]
    assert script.ask(3, PIN, "a") == [AnswerModelAction(3, note="is pinned already")]
    assert script.ask(4, UNPIN, "a") == [AnswerModelAction(4)]


@pytest.mark.parametrize(
    ("options", "model", "action", "error"),
    [
        ({}, "x", WAKE, "this node does not run 'x'"),
        ({"budget": GIB}, "a", WAKE, "needs 7.0 GiB at least"),
        ({"abilities": ENDPOINT}, "a", SLEEP, "run by somebody else"),
        ({"abilities": ENDPOINT}, "a", EVICT, "run by somebody else"),
        ({"abilities": ENDPOINT}, "a", WAKE, None),
    ],
    ids=["unknown", "never fits", "endpoint sleep", "endpoint evict", "endpoint wake"],
)
def test_what_is_not_possible_is_answered_at_once(options, model, action, error):
    (answer,) = NodeScript(**options).ask(1, action, model)
    assert answer.error is None if error is None else error in answer.error


def test_engine_that_cannot_sleep_is_not_put_to_sleep():
    script = NodeScript(abilities=STARTER).awake("a")
    (answer,) = script.ask(1, SLEEP, "a")
    assert answer.error == "the engine of 'a' cannot sleep; evict stops it"


def test_pin_protects_and_calls_off_a_drain_and_unpin_ends_it():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    script.fire(f"group:{B}")
    assert script.status("a") is S.DRAINING
    effects = script.ask(1, PIN, "a")
    assert [type(e) for e in effects] == [AnswerModelAction, RefuseStage, CancelTimer]
    assert script.engine("a").pinned
    assert script.status("a") is S.ACTIVE
    assert script.ask(2, UNPIN, "a") == [AnswerModelAction(2)]
    assert script.offer("3", "b") == [SetTimer(TimerId(f"group:{B}"), 10.0)]


def test_same_request_id_twice_is_a_bug():
    script = NodeScript()
    script.ask(1, WAKE, "a")
    with pytest.raises(InvariantViolation):
        script.ask(1, WAKE, "b")


def test_evict_of_a_suspended_engine_ends_its_frozen_requests():
    script = NodeScript(degradation=HarshDegradation(0, max_level=4)).awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    script.finish("a")
    assert script.status("a") is S.SUSPENDED
    script.finish("b")
    assert script.ask(1, SLEEP, "a")[0].error == "'a' holds suspended requests; evict stops it"
    effects = script.ask(2, EVICT, "a")
    assert [type(e) for e in effects] == [AbortStage, StopEngine]
    assert effects[0].outcome is Outcome.PREEMPTED
    assert script.finish("a") == [AnswerModelAction(2)]
