"""Engines that fail: back-off, FAILED, mistrust, and what is stale or impossible."""

import pytest

from maestroctl.domain.engine import EngineReadings, EngineStatus, ResidencyTier
from maestroctl.domain.ids import StageId, TimerId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import GIB
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.effects import (
    AbortStage,
    AnswerModelAction,
    ForwardStage,
    RefuseStage,
    SetTimer,
    SleepEngine,
    StartEngine,
    StopEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import (
    EngineExited,
    StageLeft,
    StageSentFirstByte,
    TimerFired,
    TransitionFailed,
    TransitionFinished,
)
from maestroctl.testing.builders import NodeScript, engine_of
from maestroctl.testing.node_host import dump

A, B = engine_of("a"), engine_of("b")
S = EngineStatus


def test_failed_start_refuses_its_waiters_and_backs_off_until_there_is_demand():
    script = NodeScript()
    script.offer("1", "a")
    assert script.fail("a", "no weights") == [
        RefuseStage(StageId("1"), "engine of 'a': start failed: no weights", retry_in_s=1.0),
        SetTimer(TimerId(f"backoff:{A}"), 1.0),
    ]
    assert script.booked() == 0
    assert script.engine("a").failure == "start failed: no weights"
    assert script.fire(f"backoff:{A}") == []  # nobody asks for it
    assert [type(e) for e in script.offer("2", "a")] == [StartEngine]


def test_stage_offered_during_back_off_is_held_and_served_by_the_restart():
    script = NodeScript()
    script.offer("1", "a")
    script.fail("a")
    assert script.offer("2", "a") == []
    (effect,) = script.fire(f"backoff:{A}")
    assert (type(effect), effect.generation) == (StartEngine, 2)
    assert script.finish("a") == [ForwardStage(StageId("2"), A, 2)]


def test_back_off_doubles_and_the_third_failure_in_a_row_is_failed():
    script = NodeScript()
    waits = []
    for attempt in range(3):
        script.offer(f"s{attempt}", "a")
        (refusal, *timers) = script.fail("a", f"log line {attempt}")
        waits.append(refusal.retry_in_s)
        if attempt < 2:
            script.fire(f"backoff:{A}")
    assert waits == [1.0, 2.0, 60.0]
    assert timers == [SetTimer(TimerId(f"cooldown:{A}"), script.now_s + 60.0)]
    assert script.status("a") is S.FAILED
    assert script.engine("a").failure == "start failed: log line 2"
    assert script.offer("4", "a") == [
        RefuseStage(StageId("4"), "engine of 'a' failed: start failed: log line 2", retry_in_s=60.0)
    ]


def test_permanent_failure_is_failed_at_once():
    script = NodeScript()
    script.offer("1", "a")
    script.fail("a", permanent=True)
    assert script.status("a") is S.FAILED


def failed() -> NodeScript:
    script = NodeScript()
    script.offer("1", "a")
    script.fail("a", permanent=True)
    return script


def test_failed_is_left_after_its_cool_down_and_one_more_failure_leads_back():
    script = NodeScript()
    for attempt in range(3):
        script.offer(f"s{attempt}", "a")
        script.fail("a")
        script.wait(10)
    script.fire(f"cooldown:{A}")
    assert script.status("a") is S.STOPPED
    script.offer("4", "a")
    script.fail("a")
    assert script.status("a") is S.FAILED


def test_failed_is_left_by_hand():
    script = failed()
    assert [type(e) for e in script.ask(1, ModelAction.WAKE, "a")] == [StartEngine]
    assert script.finish("a") == [AnswerModelAction(1)]


def test_good_work_between_breaks_the_row_of_failures():
    script = NodeScript()
    for attempt in range(4):
        stage = StageId(f"s{attempt}")
        script.offer(stage, "a")
        script.finish("a")
        script.do(StageSentFirstByte(stage))
        script.leave(stage)
        script.wait(10)
        script.do(EngineExited(A, attempt + 1, "killed"))
        script.finish("a")
        assert script.status("a") is S.STOPPED
        script.wait(10)


def test_engine_that_dies_serving_is_not_good_work():
    script = NodeScript()
    for attempt in range(3):
        stage = StageId(f"s{attempt}")
        script.offer(stage, "a")
        script.finish("a")
        script.do(StageSentFirstByte(stage))
        script.do(StageLeft(stage))  # the relay breaks a moment before the exit is seen
        script.do(EngineExited(A, attempt + 1, "killed"))
        script.finish("a")
        script.wait(10)
    assert script.status("a") is S.FAILED


def test_exit_ends_open_stages_visibly_and_keeps_the_books_until_the_group_is_gone():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    reason = "engine of 'a': engine exited: signal 9"
    assert script.do(EngineExited(A, 1, "signal 9")) == [
        AbortStage(StageId("1"), Outcome.FAILED, reason),
        StopEngine(A, 1, 2),
    ]
    assert script.booked() == 7 * GIB
    assert script.finish("a") == [SetTimer(TimerId(f"backoff:{A}"), 1.0)]
    assert script.booked() == 0


def test_exit_of_an_engine_being_stopped_is_expected():
    script = NodeScript(budget=8 * GIB).awake("a")
    script.offer("1", "b")
    assert script.status("a") is S.STOPPING
    assert script.do(EngineExited(A, 1, "SIGTERM")) == []
    assert script.core.stats.stale == 1


@pytest.mark.parametrize("what", ["wake", "sleep"])
def test_failed_wake_or_sleep_of_a_living_engine_stops_it_before_its_memory_counts(what):
    script = NodeScript().asleep("a") if what == "wake" else NodeScript().awake("a")
    effect = script.offer("1", "a" if what == "wake" else "b")[0]
    assert isinstance(effect, WakeEngine if what == "wake" else SleepEngine)
    effects = script.fail("a", alive=True)
    assert isinstance(effects[-1], StopEngine)
    assert script.status("a") is S.STOPPING
    assert script.booked() == 7 * GIB
    script.finish("a")
    assert script.status("a") is S.STOPPED
    assert script.booked() == (0 if what == "wake" else 8 * GIB)  # b starts in its place


def test_failed_wake_refuses_waiters_with_a_hint():
    script = NodeScript().asleep("a")
    script.offer("1", "a")
    refusal = script.fail("a", "out of memory", alive=True)[0]
    assert refusal == RefuseStage(
        StageId("1"), "engine of 'a': wake failed: out of memory", retry_in_s=1.0
    )


def test_process_that_will_not_stop_keeps_its_booking_and_is_told_again():
    script = NodeScript(budget=8 * GIB).awake("a")
    assert script.offer("1", "b") == [StopEngine(A, 1, 2)]
    effects = script.fail("a", "still there", alive=True)
    assert SetTimer(TimerId(f"stop:{A}"), 1.0) in effects
    assert [e for e in effects if isinstance(e, RefuseStage)]  # nothing to wait for
    assert script.booked() == 7 * GIB
    assert script.engine("a").failure == "could not be stopped: still there"
    assert script.fire(f"stop:{A}") == [StopEngine(A, 1, 3)]
    assert script.fail("a", "still there", alive=True) == [SetTimer(TimerId(f"stop:{A}"), 3.0)]
    script.fire(f"stop:{A}")
    script.finish("a")
    assert script.booked() == 0


def test_stuck_process_does_not_block_its_device_for_others():
    script = NodeScript(budget=20 * GIB, abilities={}).awake("a")
    script.ask(1, ModelAction.EVICT, "a")
    assert AnswerModelAction(1, "'a' could not be stopped: D state") in script.fail(
        "a", "D state", alive=True
    )
    assert [type(e) for e in script.offer("1", "b")] == [StartEngine]


def test_stop_that_finds_the_process_gone_is_as_good_as_stopped():
    script = NodeScript(budget=8 * GIB).awake("a")
    script.offer("1", "b")
    (start,) = script.fail("a", "no such process", alive=False)
    assert isinstance(start, StartEngine)


# --- stale and impossible -----------------------------------------------------------------------


def test_result_of_a_former_generation_is_counted_and_changes_nothing():
    script = NodeScript()
    script.offer("1", "a")
    script.fail("a")
    script.wait(1)
    script.offer("2", "a")  # generation 2
    before = dump(script.core)
    stale = [
        TransitionFinished(A, 1, 1, EngineReadings(0)),
        TransitionFailed(A, 1, 1, "late", alive=True),
        EngineExited(A, 1, "late"),
        TimerFired(TimerId("group:nobody")),
        StageLeft(StageId("never seen")),
    ]
    for event in stale:
        assert script.core.handle(event, script.now_s) == []
    assert script.core.stats.stale == len(stale)
    assert dump(script.core) == before


def test_result_answered_twice_is_stale_the_second_time():
    script = NodeScript()
    (effect,) = script.offer("1", "a")
    script.finish("a")
    again = TransitionFinished(A, 1, effect.effect_id, EngineReadings(0))
    assert script.do(again) == []
    assert script.core.stats.stale == 1


IMPOSSIBLE = [
    TransitionFinished(A, 1, 99, EngineReadings(0)),
    TransitionFinished(A, 2, 1, EngineReadings(0)),
    TransitionFinished(A, 1, 1, EngineReadings(-1)),
    TransitionFinished(engine_of("x"), 1, 1, EngineReadings(0)),
    TransitionFailed(A, 1, 99, "?", alive=True),
    TransitionFailed(B, 1, 1, "?", alive=True),
    EngineExited(A, 2, "?"),
    EngineExited(B, 1, "?"),
]


@pytest.mark.parametrize("event", IMPOSSIBLE, ids=repr)
def test_impossible_result_raises_with_the_story_and_changes_nothing(event):
    script = NodeScript()
    script.offer("1", "a")
    before = dump(script.core)
    with pytest.raises(InvariantViolation) as raised:
        script.core.handle(event, 0.0)
    assert dump(script.core) == before
    if event.engine_id == A:
        assert raised.value.story == script.core.story(A) != ()


def test_tier_of_a_sleeping_engine_is_told():
    assert NodeScript().asleep("a").engine("a").tier is ResidencyTier.DISK
