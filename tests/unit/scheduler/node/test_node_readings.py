"""Budgets that move, readings above the books, adopted engines, and going down."""

import pytest

from maestroctl.domain.engine import EngineReadings, EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, DeviceName, EngineId, ModelName, StageId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import GIB, MIB
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.effects import (
    AbortStage,
    AnswerModelAction,
    CancelTimer,
    ForwardStage,
    NodeEmptied,
    PublishSnapshot,
    RefuseStage,
    SleepEngine,
    StartEngine,
    StopEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import (
    EngineAdopted,
    MemoryRead,
    ShutdownRequested,
)
from maestroctl.testing.builders import (
    CPU,
    ELASTIC,
    ENDPOINT,
    HOST_SLEEPER,
    SLEEPER,
    NodeScript,
    engine_of,
)
from maestroctl.testing.node_host import dump

A, B = engine_of("a"), engine_of("b")
S = EngineStatus
DISK = ResidencyTier.DISK


# --- budgets ------------------------------------------------------------------------------------


def test_lowered_budget_puts_idle_engines_to_sleep():
    script = NodeScript().awake("a")
    assert script.do(MemoryRead({CPU: 5 * GIB})) == [SleepEngine(A, 1, 2, DISK)]


def test_lowered_budget_stops_admissions_of_a_busy_engine_until_it_is_back():
    script = NodeScript(budget=20 * GIB).awake("a", "b")
    script.offer("1", "a")
    script.offer("2", "b")
    (relief,) = script.do(MemoryRead({CPU: 10 * GIB}))
    assert relief.timer_id == "relief"  # from then on stages may be sent back
    (timer,) = script.offer("3", "a")
    assert timer.timer_id == f"group:{A}"
    assert script.do(MemoryRead({CPU: 20 * GIB})) == [
        ForwardStage(StageId("3"), A, 1),
        CancelTimer("relief"),
        CancelTimer(timer.timer_id),
    ]


def test_engine_that_fits_no_longer_refuses_with_the_shortfall():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.do(MemoryRead({CPU: 5 * GIB}))
    (refusal,) = script.offer("2", "a")
    assert (refusal.shortfall_bytes, refusal.permanent) == ({CPU: 2 * GIB}, False)
    assert script.leave("1") == [SleepEngine(A, 1, 2, DISK)]


def test_same_budget_again_is_no_news():
    script = NodeScript()
    assert script.core.handle(MemoryRead({CPU: 10 * GIB}), 0.0) == []
    assert script.core.handle(MemoryRead({CPU: 9 * GIB}), 0.0) == [PublishSnapshot()]


def test_model_too_large_for_a_lowered_budget_only_is_not_refused_for_good():
    script = NodeScript()
    script.do(MemoryRead({CPU: 5 * GIB}))
    (refusal,) = script.offer("1", "a")
    assert not refusal.permanent
    assert refusal.shortfall_bytes == {CPU: 2 * GIB}


def test_booking_follows_a_reading_above_it_and_back():
    script = NodeScript().awake("a")
    script.do(MemoryRead({}, {A: 9 * GIB}))
    assert script.booked() == 9 * GIB
    script.do(MemoryRead({}, {A: 2 * GIB}))
    assert script.booked() == 7 * GIB


def test_reading_of_a_sleeping_engine_above_its_context_is_believed():
    script = NodeScript().awake("a")
    script.ask(1, ModelAction.SLEEP, "a")
    script.finish("a", device=3 * GIB)
    assert script.booked() == 3 * GIB


def test_reading_during_a_transition_only_raises_the_booking():
    script = NodeScript().awake("a")
    script.ask(1, ModelAction.SLEEP, "a")
    script.do(MemoryRead({}, {A: 1 * GIB}))
    assert script.booked() == 7 * GIB
    script.do(MemoryRead({}, {A: 8 * GIB}))
    assert script.booked() == 8 * GIB


IMPOSSIBLE = [
    MemoryRead({DeviceName("cuda:7"): 1}),
    MemoryRead({CPU: -1}),
    MemoryRead({}, {EngineId("x@n"): 1}),
    MemoryRead({CPU: 1}, {A: -1}),
]


@pytest.mark.parametrize("event", IMPOSSIBLE, ids=repr)
def test_impossible_reading_raises_and_changes_nothing(event):
    script = NodeScript().awake("a")
    before = dump(script.core)
    with pytest.raises(InvariantViolation):
        script.core.handle(event, 0.0)
    assert dump(script.core) == before


# --- adoption -----------------------------------------------------------------------------------


def adopted(status: EngineStatus, tier: ResidencyTier, device: int) -> EngineAdopted:
    return EngineAdopted(A, ModelName("a"), status, tier, 2 * GIB, EngineReadings(device))


def test_adopted_idle_engine_serves_at_once_under_generation_1():
    script = NodeScript()
    script.do(adopted(S.IDLE, ResidencyTier.DEVICE, 6 * GIB))
    assert script.booked() == 7 * GIB
    assert script.offer("1", "a") == [ForwardStage(StageId("1"), A, 1)]


def test_adopted_sleeping_engine_is_woken():
    script = NodeScript(abilities=HOST_SLEEPER)
    script.do(adopted(S.SLEEPING, ResidencyTier.HOST, 2 * GIB))
    assert script.booked() == 2 * GIB
    assert script.booked(HOST_DEVICE) == 4 * GIB
    assert script.offer("1", "a") == [WakeEngine(A, 1, 1)]


def test_adopted_engines_above_the_budget_make_room_and_raise_nothing():
    script = NodeScript(budget=6 * GIB)
    assert script.do(adopted(S.IDLE, ResidencyTier.DEVICE, 0)) == [SleepEngine(A, 1, 1, DISK)]


def test_adoption_of_a_live_engine_is_impossible():
    script = NodeScript().awake("a")
    before = dump(script.core)
    with pytest.raises(InvariantViolation):
        script.core.handle(adopted(S.IDLE, ResidencyTier.DEVICE, 0), 0.0)
    assert dump(script.core) == before


# --- going down ---------------------------------------------------------------------------------

DOWN = "the node is shutting down"


def test_drain_lets_forwarded_stages_finish_refuses_new_ones_then_stops_and_is_empty_once():
    script = NodeScript(budget=20 * GIB).awake("a", "b")
    script.offer("1", "a")
    assert script.do(ShutdownRequested(drain=True)) == [StopEngine(B, 1, 3)]
    assert script.offer("2", "a") == [RefuseStage(StageId("2"), DOWN)]
    assert script.finish("b") == []
    assert script.leave("1") == [StopEngine(A, 1, 4)]
    assert script.finish("a") == [NodeEmptied()]
    assert script.do(ShutdownRequested(drain=True)) == []
    assert script.core.snapshot(0.0).draining


def test_drain_refuses_the_held_and_calls_off_starts():
    script = NodeScript()
    script.offer("1", "a")
    script.offer("2", "b")
    assert script.do(ShutdownRequested(drain=True)) == [
        CancelTimer(f"group:{B}"),
        RefuseStage(StageId("1"), DOWN),
        RefuseStage(StageId("2"), DOWN),
        StopEngine(A, 1, 2),
    ]


def test_stop_now_aborts_everything_and_stops_all_engines_at_once():
    script = NodeScript(budget=20 * GIB).awake("a", "b")
    script.offer("1", "a")
    assert script.do(ShutdownRequested(drain=False)) == [
        AbortStage(StageId("1"), Outcome.INTERRUPTED, DOWN),
        StopEngine(A, 1, 3),
        StopEngine(B, 1, 4),
    ]
    assert script.leave("1") == []
    script.finish("b")
    assert script.finish("a") == [NodeEmptied()]


def test_second_request_without_drain_makes_a_drain_immediate():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    assert script.do(ShutdownRequested(drain=True)) == []
    effects = script.do(ShutdownRequested(drain=False))
    assert [type(e) for e in effects] == [AbortStage, StopEngine]


def test_endpoints_are_left_alone_but_waited_for():
    script = NodeScript(models=("e", "a"), abilities={"e": ENDPOINT, "a": SLEEPER})
    script.offer("1", "e")
    assert script.do(ShutdownRequested(drain=True)) == []
    assert script.leave("1") == [NodeEmptied()]


def test_idle_node_is_empty_at_once():
    assert NodeScript().do(ShutdownRequested(drain=True)) == [NodeEmptied()]


def test_shutdown_answers_requests_by_hand():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.ask(1, ModelAction.WAKE, "b")
    script.ask(2, ModelAction.EVICT, "a")
    effects = script.do(ShutdownRequested(drain=True))
    assert AnswerModelAction(1, DOWN) in effects
    script.leave("1")
    assert script.finish("a") == [AnswerModelAction(2), NodeEmptied()]
    assert script.ask(3, ModelAction.WAKE, "a") == [AnswerModelAction(3, DOWN)]


def test_process_that_will_not_go_keeps_the_node_from_being_empty():
    script = NodeScript().awake("a")
    script.do(ShutdownRequested(drain=True))
    script.fail("a", alive=True)
    assert [type(e) for e in script.fire(f"stop:{A}")] == [StopEngine]
    assert script.finish("a") == [NodeEmptied()]


def test_start_after_freed_memory_waits_for_the_reading_not_for_the_exit():
    script = NodeScript(budget=8 * GIB).awake("a")
    assert [type(e) for e in script.offer("1", "b")] == [StopEngine]
    assert [type(e) for e in script.finish("a")] == [StartEngine]


def test_overrun_that_a_falling_limit_ends_opens_the_others_at_once():
    script = NodeScript(abilities=ELASTIC, budget=14 * GIB).awake("a").awake("b")
    script.offer("0", "a")
    for stage in ("1", "2"):
        script.offer(stage, "b", tokens=1024)  # its limit rises by 1 GiB
    script.ask(1, ModelAction.SLEEP, "b")
    script.do(MemoryRead({CPU: 12 * GIB + 512 * MIB}))
    assert script.offer("3", "a") == []
    script.leave("1")
    assert ForwardStage(StageId("3"), engine_of("a"), 1) in script.leave("2")
