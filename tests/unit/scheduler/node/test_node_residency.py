"""Waking, sleeping and stopping on demand: who gives way, and when."""

import pytest

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, ModelName, StageId, TimerId
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.units import GIB
from maestroctl.scheduler.effects import (
    CancelTimer,
    ForwardStage,
    RefuseStage,
    SetTimer,
    SleepEngine,
    StartEngine,
    StopEngine,
    WakeEngine,
)
from maestroctl.scheduler.events import PrewarmAdvised, StageRebooked, StageWithdrawn
from maestroctl.scheduler.node.claims import PREWARM_LEAD
from maestroctl.testing.builders import (
    CPU,
    HOST_SLEEPER,
    STARTER,
    NodeScript,
    engine_of,
)

A, B, C = engine_of("a"), engine_of("b"), engine_of("c")
DISK, HOST = ResidencyTier.DISK, ResidencyTier.HOST
S = EngineStatus


def start(model: str, generation: int, effect_id: int, kv: int = 2 * GIB) -> StartEngine:
    return StartEngine(engine_of(model), ModelName(model), generation, effect_id, (CPU,), kv)


def forward(stage: str, model: str, generation: int = 1) -> ForwardStage:
    return ForwardStage(StageId(stage), engine_of(model), generation)


def test_idle_engine_sleeps_first_and_the_other_starts_when_memory_was_read_back():
    script = NodeScript().awake("a")
    assert script.offer("1", "b") == [SleepEngine(A, 1, 2, DISK)]
    assert script.booked() == 7 * GIB  # not free before the reading
    assert script.finish("a") == [start("b", 1, 3)]
    assert script.booked() == (1 + 8) * GIB
    assert script.finish("b") == [forward("1", "b")]


def test_sleeping_engine_is_woken_with_its_memory_booked_first():
    script = NodeScript().asleep("a")
    assert script.booked() == 1 * GIB
    assert script.offer("1", "a") == [WakeEngine(A, 1, 3)]
    assert script.booked() == 7 * GIB
    assert script.finish("a") == [forward("1", "a")]


def test_least_recently_used_idle_engine_gives_way():
    script = NodeScript(budget=16 * GIB).awake("a", "b")
    script.wait(1)
    script.offer("1", "a")
    script.leave("1")
    assert script.offer("2", "c") == [SleepEngine(B, 1, 3, DISK)]


def test_only_as_many_give_way_as_are_needed():
    script = NodeScript(
        budget=16 * GIB, profiles={"a": {"weights_bytes": 1 * GIB}, "c": {"weights_bytes": GIB}}
    )
    script.awake("a", "b")  # 5 + 7, 4 free; c needs 6 to start
    assert script.offer("1", "c") == [SleepEngine(A, 1, 3, DISK)]


def test_engine_that_cannot_sleep_is_stopped():
    script = NodeScript(abilities=STARTER).awake("a")
    assert script.offer("1", "b") == [StopEngine(A, 1, 2)]
    assert script.finish("a") == [start("b", 1, 3)]
    assert script.booked() == 8 * GIB


def test_sleeping_engines_are_stopped_when_sleep_frees_too_little():
    script = NodeScript(budget=8 * GIB, models=("a", "b"))
    script.awake("a")  # 7 of 8; b needs 7 at least, and a keeps 1 asleep
    assert script.offer("1", "b") == [StopEngine(A, 1, 2)]


def test_pool_shrinks_into_free_memory_before_a_busy_engine_is_touched():
    script = NodeScript(budget=14 * GIB).awake("a")
    script.offer("1", "a")  # 7 of 14: b's full pool needs 8, its least 7
    assert script.offer("2", "b") == [start("b", 1, 2, kv=1 * GIB)]


def test_sleep_at_host_tier_books_host_memory_before_it_begins():
    script = NodeScript(abilities=HOST_SLEEPER).awake("a")
    assert script.offer("1", "b") == [SleepEngine(A, 1, 2, HOST)]
    assert script.booked(HOST_DEVICE) == 4 * GIB
    script.finish("a")
    script.finish("b")
    script.leave("1")
    assert script.offer("2", "a") == [SleepEngine(B, 1, 4, HOST)]
    script.finish("b")
    assert script.booked(HOST_DEVICE) == 8 * GIB  # a's is kept until its wake is verified
    script.finish("a")
    assert script.booked(HOST_DEVICE) == 4 * GIB


def test_full_host_means_stopping_instead_of_sleeping():
    script = NodeScript(abilities=HOST_SLEEPER, host=3 * GIB).awake("a")
    assert script.offer("1", "b") == [StopEngine(A, 1, 2)]


def test_host_tier_is_emptied_by_stopping_its_least_recently_used_sleeper():
    script = NodeScript(abilities=HOST_SLEEPER, host=4 * GIB).awake("a")
    script.offer("1", "b")
    script.finish("a")
    script.finish("b")
    script.leave("1")  # a asleep at host (4 of 4), b awake
    script.wait(100)
    script.offer("1", "b")
    script.leave("1")
    assert script.offer("2", "c") == [StopEngine(A, 1, 4)]
    assert script.finish("a") == [SleepEngine(B, 1, 5, HOST)]


def test_pinned_engine_never_gives_way_and_the_other_is_refused_with_the_shortfall():
    script = NodeScript(specs={"a": {"pin": True}}).awake("a")
    assert script.offer("1", "b") == [
        RefuseStage(
            StageId("1"), "no room for 'b': 4.0 GiB on cpu short", {CPU: 4 * GIB}, False, None
        )
    ]
    assert script.status("a") is S.IDLE


def test_two_sleeping_engines_wake_one_after_the_other_on_one_device():
    script = NodeScript(budget=20 * GIB).asleep("a", "b")
    assert script.offer("1", "a") == [WakeEngine(A, 1, 5)]
    assert script.offer("2", "b") == []  # memory is free, the device is not
    assert script.finish("a") == [forward("1", "a"), WakeEngine(B, 1, 6)]


def test_engines_on_different_devices_start_side_by_side():
    script = NodeScript(devices={"cuda:0": 10 * GIB, "cuda:1": 10 * GIB})
    (first,) = script.offer("1", "a")
    (second,) = script.offer("2", "b")
    assert first.devices != second.devices


def test_tensor_parallel_engine_is_booked_on_each_of_its_devices():
    script = NodeScript(
        devices={"cuda:0": 10 * GIB, "cuda:1": 9 * GIB}, specs={"a": {"tensor_parallel": 2}}
    )
    (effect,) = script.offer("1", "a")
    assert effect.devices == ("cuda:0", "cuda:1")
    assert (script.booked("cuda:0"), script.booked("cuda:1")) == (8 * GIB, 8 * GIB)


# --- busy victims -------------------------------------------------------------------------------


def test_model_on_the_device_goes_on_until_the_oldest_waiter_has_waited_its_time():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    assert script.offer("2", "b") == [SetTimer(TimerId(f"group:{B}"), 5.0)]
    assert script.offer("3", "a") == [forward("3", "a")]
    assert script.fire(f"group:{B}") == [SetTimer(TimerId(f"group:{B}"), 25.0)]  # then it is hard
    assert script.status("a") is S.DRAINING
    assert script.offer("4", "a") == []  # held for it
    script.leave("1")
    assert script.leave("3") == [SleepEngine(A, 1, 2, DISK), CancelTimer(TimerId(f"group:{B}"))]
    its_turn = SetTimer(TimerId(f"group:{A}"), 10.0)  # stage 4 has waited since 5.0
    assert script.finish("a") == [start("b", 1, 3), its_turn]
    assert script.finish("b") == [forward("2", "b")]


def test_idle_engine_gives_way_at_once_without_group_wait():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    assert script.leave("1") == [SleepEngine(A, 1, 2, DISK), CancelTimer(TimerId(f"group:{B}"))]


# c needs 9 at least: stopping idle a frees as much, so do a and b asleep once b has drained.
BIG_C = {"budget": 16 * GIB, "profiles": {"c": {"weights_bytes": 5 * GIB}}}


def test_no_engine_is_stopped_while_a_busy_one_could_sleep_soon():
    script = NodeScript(**BIG_C).awake("a", "b")
    script.offer("1", "b")
    assert script.offer("2", "c") == [SetTimer(TimerId(f"group:{C}"), 5.0)]
    assert script.leave("1") == [SleepEngine(A, 1, 3, DISK), CancelTimer(TimerId(f"group:{C}"))]
    assert script.finish("a") == [SleepEngine(B, 1, 4, DISK)]
    assert script.finish("b") == [start("c", 1, 5)]


def test_busy_engine_that_could_sleep_is_drained_rather_than_an_idle_one_stopped():
    script = NodeScript(**BIG_C).awake("a", "b")
    script.offer("1", "b")
    script.offer("2", "c")
    assert script.fire(f"group:{C}") == [
        SetTimer(TimerId(f"group:{C}"), 25.0),
        SleepEngine(A, 1, 3, DISK),
    ]
    assert (script.status("a"), script.status("b")) == (S.FALLING_ASLEEP, S.DRAINING)


def test_engine_that_serves_its_first_waiters_is_waited_for_but_not_for_ever():
    script = NodeScript(**BIG_C).awake("a")
    script.offer("1", "b")
    script.finish("b")  # stage 1, for which it was started, is open: it cannot be drained
    assert script.offer("2", "c") == [SetTimer(TimerId(f"group:{C}"), 5.0)]
    assert script.fire(f"group:{C}") == [StopEngine(A, 1, 3)]


def test_draining_engine_refuses_as_draining_when_it_holds_enough():
    script = NodeScript(policy=PolicySpec(group_wait_s=0.0)).awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    assert script.status("a") is S.DRAINING
    held = [script.offer(f"h{n}", "a") for n in range(4)]
    assert held == [[], [], [], []]
    assert script.offer("5", "a") == [RefuseStage(StageId("5"), "draining", retry_in_s=2.5)]


def test_just_woken_engine_is_no_victim_before_it_served_its_waiters():
    script = NodeScript(policy=PolicySpec(group_wait_s=0.0)).asleep("a", "b")
    script.offer("1", "a")
    script.finish("a")
    script.offer("2", "a")
    script.offer("3", "b")
    assert script.status("a") is S.ACTIVE  # stage 1, for which it was woken, is open
    script.leave("1")
    assert script.status("a") is S.DRAINING
    assert script.leave("2")[0] == SleepEngine(A, 1, 6, DISK)


def test_drain_is_called_off_when_its_waiter_goes_away():
    script = NodeScript(policy=PolicySpec(group_wait_s=0.0)).awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    script.offer("3", "a")
    assert script.do(StageWithdrawn(StageId("2")))[0] == forward("3", "a")
    assert script.status("a") is S.ACTIVE


def test_earlier_claim_is_not_overtaken_by_a_later_smaller_one():
    script = NodeScript(
        policy=PolicySpec(group_wait_s=0.0),
        budget=12 * GIB,
        profiles={"c": {"weights_bytes": 0, "kv_pool_bytes": GIB}},
    )
    script.awake("a")
    script.offer("1", "a")
    script.offer("2", "b")  # needs 7 at least: a drains
    assert script.offer("3", "c") == []  # its 4 are free, but promised
    assert script.leave("1") == [SleepEngine(A, 1, 2, DISK), CancelTimer(TimerId(f"group:{B}"))]
    assert [start("b", 1, 3)] == script.finish("a")


# --- time to live and prewarming ----------------------------------------------------------------


def test_engine_sleeps_after_its_time_to_live_counted_from_the_last_stage():
    script = NodeScript(specs={"a": {"ttl_s": 60.0}}).awake("a")
    timer = f"ttl:{A}"
    assert script.timers[TimerId(timer)] == 60.0
    script.wait(40)
    script.offer("1", "a")
    script.wait(10)
    assert script.leave("1") == []
    assert script.fire(timer) == [SetTimer(TimerId(timer), 110.0)]
    assert script.fire(timer) == [SleepEngine(A, 1, 2, DISK)]


def test_time_to_live_does_not_touch_a_pinned_engine():
    script = NodeScript(specs={"a": {"ttl_s": 60.0, "pin": True}}).awake("a")
    assert script.timers == {}


def prewarm(model: str, at_s: float = 0.0, seq: int = 0) -> PrewarmAdvised:
    return PrewarmAdvised(ModelName(model), 0.9, at_s, 0, seq)


def test_advice_that_overtakes_its_stage_waits_for_it():
    """Else the model of the next stage would take the memory before that of this one."""
    script = NodeScript()
    assert script.do(prewarm("b", seq=1)) == []
    script.offer("1", "a", seq=1)
    assert script.status("a") is S.STARTING
    assert script.status("b") is S.STOPPED


def test_early_advice_is_heeded_once_its_stage_is_there():
    script = NodeScript(budget=40 * GIB)
    script.do(prewarm("b", seq=1))
    script.offer("1", "a", seq=1)
    script.finish("a")
    assert script.status("b") is S.STARTING


def test_early_advice_is_heeded_though_a_later_number_came_before_its_stage():
    script = NodeScript(budget=40 * GIB)
    script.do(prewarm("b", seq=1))
    script.do(StageRebooked(StageId("other"), 1, 0, 2, 1, 1))
    assert script.status("b") is S.STOPPED
    script.offer("1", "a", seq=1)
    script.finish("a")
    assert script.status("b") is S.STARTING


def test_prewarm_wakes_into_free_memory_and_gives_up_unused_after_twice_its_activation():
    script = NodeScript().asleep("a")
    assert script.do(prewarm("a", 3.0))[-1] == WakeEngine(A, 1, 3)
    assert script.finish("a") == [SetTimer(TimerId(f"prewarm:{A}"), 7.0)]
    assert script.fire(f"prewarm:{A}") == [SleepEngine(A, 1, 4, DISK)]


def test_prewarm_that_is_used_stays():
    script = NodeScript().asleep("a")
    script.do(prewarm("a"))
    script.finish("a")
    script.offer("1", "a")
    script.leave("1")
    assert script.fire(f"prewarm:{A}") == []
    assert script.status("a") is S.IDLE


def test_prewarm_puts_an_idle_engine_to_sleep_that_nobody_is_likely_to_want():
    script = NodeScript().awake("a")
    assert script.do(prewarm("c"))[-1] == SleepEngine(A, 1, 2, DISK)
    assert script.finish("a")[-1] == start("c", 1, 3)


def test_prewarm_leaves_an_idle_engine_alone_that_is_worth_more():
    script = NodeScript(profiles={"a": {"wake_s": 100.0}}).awake("a")
    for number in range(30):  # a is asked for all the time
        script.offer(str(number), "a")
        script.leave(str(number))
    effects = script.do(prewarm("c"))
    assert [type(effect) for effect in effects] == [SetTimer]


def test_prewarm_makes_no_busy_engine_give_way():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    script.offer("2", "b")
    assert [type(effect) for effect in script.do(prewarm("c"))] == [SetTimer]
    script.wait(1000)
    script.fire(f"advice:{C}")
    assert script.status("c") is S.STOPPED


def test_prewarm_begins_no_earlier_than_it_has_to():
    script = NodeScript().asleep("a")
    lead_s = PREWARM_LEAD * 2.0  # a wakes in two seconds
    assert script.do(prewarm("a", 50.0)) == [SetTimer(TimerId(f"advice:{A}"), 50.0 - lead_s)]
    assert WakeEngine(A, 1, 3) in script.fire(f"advice:{A}")


@pytest.mark.parametrize(
    ("wake_s", "sleep_s", "wait_s"), [(0.1, 0.1, 5.0), (1.5, 0.5, 18.0), (30.0, 5.0, 60.0)]
)
def test_unless_told_a_model_goes_on_for_nine_times_the_switch(wake_s, sleep_s, wait_s):
    times = {"wake_s": wake_s, "sleep_s": sleep_s}
    script = NodeScript(policy=PolicySpec(), profiles={"b": times}).awake("a")
    script.offer("1", "a")
    assert script.offer("2", "b") == [SetTimer(TimerId("group:b@n"), pytest.approx(wait_s))]


def test_wake_not_begun_is_withdrawn_for_an_older_claim_and_its_stages_go_back():
    """Both claims are of one pass; the later one's engine is under way when its turn comes."""
    script = NodeScript(
        models=("a", "b", "c"),
        devices={"cuda:0": 10 * GIB, "cuda:1": 8 * GIB},
        profiles={"b": {"weights_bytes": 6 * GIB}},  # 10 GiB at least: cuda:0, all of it
    )
    for model in ("a", "c"):  # both on cuda:0, which has more free memory
        script.awake(model)
        if model == "a":
            script.ask(1, ModelAction.SLEEP, "a")
            script.finish("a")
    script.offer("1", "c")
    script.offer("2", "b")
    script.wait(1.0)
    script.offer("3", "a")  # as long as nobody is made to drain, it is no victim
    effects = script.fire(f"group:{B}")
    assert StopEngine(A, 1, 4) in effects
    assert RefuseStage(StageId("3"), "wake of 'a' was withdrawn", retry_in_s=0.0) in effects
    script.offer("3", "a")
    script.leave("1")
    while script.open:
        script.finish(script.open[0].engine_id.split("@")[0])
    assert script.status("b") is script.status("a") is EngineStatus.ACTIVE
