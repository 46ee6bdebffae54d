"""Offers, slots, bookings inside the KV limit, and the ways a stage ends."""

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName, StageId
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.units import GIB, MIB
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.effects import (
    AbortStage,
    ForwardStage,
    PublishSnapshot,
    RecordDecision,
    RefuseStage,
    SetKvLimit,
    SleepEngine,
    StartEngine,
)
from maestroctl.scheduler.events import (
    EpochAnnounced,
    MemoryRead,
    StageLeft,
    StageOutgrew,
    StageRebooked,
    StageSentFirstByte,
    StageWithdrawn,
)
from maestroctl.scheduler.node.engine_state import MAX_PASSED_S
from maestroctl.testing.builders import (
    CPU,
    ELASTIC,
    ENDPOINT,
    NodeScript,
    engine_of,
    make_node_core,
    make_offer,
)
from maestroctl.testing.node_host import dump

A = engine_of("a")


def forward(stage: str, model: str = "a", generation: int = 1) -> ForwardStage:
    return ForwardStage(StageId(stage), engine_of(model), generation)


def test_stage_for_an_awake_engine_is_forwarded_with_nothing_else():
    script = NodeScript().awake("a")
    effects = script.core.handle(make_offer("1", "a"), 0.0)
    assert effects == [forward("1")]
    assert script.core.handle(StageLeft(StageId("1")), 0.0) == []


def test_stage_for_a_stopped_engine_starts_it_and_is_forwarded_when_it_is_ready():
    script = NodeScript()
    assert script.offer("1", "a") == [StartEngine(A, ModelName("a"), 1, 1, (CPU,), 2 * GIB)]
    assert script.booked() == 8 * GIB
    assert script.finish("a") == [forward("1")]
    assert script.booked() == 7 * GIB
    assert script.leave("1") == []
    assert script.status("a") is EngineStatus.IDLE


def test_waiters_of_one_model_are_served_together_lowest_key_first():
    script = NodeScript()
    script.offer("1", "a", key=2.0)
    script.offer("2", "a", key=1.0)
    script.offer("3", "a", key=1.0)
    assert script.finish("a") == [forward("2"), forward("3"), forward("1")]


def test_engine_takes_its_batch_and_one_more_and_refuses_the_rest_as_full():
    script = NodeScript().awake("a")  # max_batch 4
    effects = [script.offer(str(n), "a") for n in range(1, 7)]
    assert effects[:5] == [[forward(str(n))] for n in range(1, 6)]
    assert effects[5] == [RefuseStage(StageId("6"), "full", retry_in_s=0.25)]
    assert script.engine("a").slots == 5


def test_stage_beyond_the_kv_limit_is_held_and_the_next_one_refused():
    script = NodeScript().awake("a")  # KV limit 2,048 tokens
    assert script.offer("1", "a", tokens=1000) == [forward("1")]
    assert script.offer("2", "a", tokens=1024) == [forward("2")]
    assert script.offer("3", "a", tokens=400) == []
    assert script.offer("4", "a", tokens=16) == [RefuseStage(StageId("4"), "full", retry_in_s=0.25)]
    assert script.leave("1") == [forward("3")]


def test_stage_that_fits_goes_before_one_of_a_higher_key_that_does_not():
    script = NodeScript(abilities=ELASTIC, budget=7 * GIB).awake("a")  # KV limit 1,024 tokens
    script.do(MemoryRead({CPU: 6 * GIB}))
    script.offer("1", "a", tokens=512)
    assert script.offer("large", "a", tokens=1024, key=1.0) == []
    assert script.offer("small", "a", tokens=256, key=0.0) == [forward("small")]


def test_booking_is_rounded_up_to_blocks_and_capped_at_full_length():
    script = NodeScript().awake("a")
    script.offer("1", "a", tokens=17)
    assert script.engine("a").kv_booked_bytes == 32 * MIB
    script.offer("2", "a", tokens=1_000_000)
    assert script.engine("a").kv_booked_bytes == (32 + 1024) * MIB


def test_empty_engine_takes_any_stage_even_with_the_least_kv_limit():
    script = NodeScript(profiles={"a": {"kv_pool_bytes": 1 * GIB}}).awake("a")
    assert script.offer("1", "a", tokens=1024) == [forward("1")]


def test_stage_that_outgrows_its_booking_is_rebooked_and_nobody_is_aborted():
    script = NodeScript().awake("a")
    script.offer("1", "a", tokens=1024)
    script.offer("2", "a", tokens=900)
    assert script.do(StageOutgrew(StageId("2"), 1000)) == []
    assert script.engine("a").kv_booked_bytes == (1024 + 1008) * MIB
    assert script.do(StageOutgrew(StageId("2"), 10)) == []
    assert script.core.stats.outgrown == 1


def rebook(script: NodeScript, stage: str, tokens: int, **changes: int):
    fields = {"attempt": 1, "epoch": 0, "seq": 9, "prompt_tokens": 1} | changes
    return script.do(StageRebooked(StageId(stage), booked_tokens=tokens, **fields))


def test_better_prediction_moves_the_booking_of_a_running_stage_and_lets_the_next_one_in():
    script = NodeScript().awake("a")  # KV limit 2,048 tokens
    script.offer("1", "a", tokens=1024)
    script.offer("2", "a", tokens=1024)
    script.offer("3", "a", tokens=400)
    assert rebook(script, "1", 900) == []
    assert script.engine("a").kv_booked_bytes == (912 + 1024) * MIB
    assert rebook(script, "1", 600) == [forward("3")]
    assert script.engine("a").kv_booked_bytes == (608 + 1024 + 400) * MIB
    assert rebook(script, "1", 1024) == []  # beyond the limit: nobody is sent away
    assert script.engine("a").num_running == 3
    assert script.engine("a").kv_booked_bytes == (1024 + 1024 + 400) * MIB
    assert script.core.snapshot(0.0).applied_seq == 9


def test_better_prediction_of_a_held_stage_lets_it_in():
    script = NodeScript().awake("a")
    script.offer("1", "a", tokens=1024)
    script.offer("2", "a", tokens=900)
    assert script.offer("3", "a", tokens=400) == []
    assert rebook(script, "3", 100) == [forward("3")]


def test_better_prediction_raises_the_limit_of_an_elastic_engine_into_free_memory():
    script = NodeScript(abilities=ELASTIC).awake("a")  # begins at its floor: one long sequence
    script.offer("1", "a", tokens=512)
    script.offer("2", "a", tokens=512)
    assert rebook(script, "2", 1024) == [SetKvLimit(A, 1, GIB + 512 * MIB)]


@pytest.mark.parametrize(
    ("stage", "changes"),
    [("1", {"attempt": 2}), ("1", {"epoch": -1}), ("1", {"epoch": 1}), ("gone", {})],
    ids=["another attempt", "a former coordinator", "one not heard of", "a stage that has left"],
)
def test_better_prediction_of_what_is_not_here_is_stale(stage, changes):
    script = NodeScript().awake("a")
    script.offer("1", "a", tokens=512)
    assert rebook(script, stage, 1024, **changes) == []
    assert script.engine("a").kv_booked_bytes == 512 * MIB
    assert script.core.stats.stale == 1


def test_elastic_engine_raises_its_limit_into_free_memory_and_gives_it_back_when_idle():
    script = NodeScript(abilities=ELASTIC).awake("a")  # begins at its floor: one long sequence
    script.offer("1", "a", tokens=1024)
    raised = SetKvLimit(A, 1, 2 * GIB)
    assert script.offer("2", "a", tokens=1024) == [raised, forward("2")]
    raised = SetKvLimit(A, 1, 2 * GIB + 512 * MIB)
    assert script.offer("3", "a", tokens=512) == [raised, forward("3")]
    assert script.booked() == 7 * GIB + 512 * MIB
    for stage in ("1", "2"):
        script.leave(stage)
    assert script.leave("3") == [SetKvLimit(A, 1, GIB)]
    assert script.booked() == 6 * GIB


def test_elastic_engine_without_free_memory_holds_like_any_other():
    script = NodeScript(abilities=ELASTIC, budget=8 * GIB).awake("a")
    script.offer("1", "a", tokens=1024)
    script.offer("2", "a", tokens=1024)
    script.offer("3", "a", tokens=1024)  # the last free GiB
    assert script.offer("4", "a", tokens=16) == []
    assert script.booked() == 8 * GIB


def grow_beside(b_is_busy: bool, **options) -> NodeScript:
    """`a` serves one long stage at its limit of 1 GiB, `b` is awake; no memory is free."""
    script = NodeScript(abilities=ELASTIC, budget=13 * GIB, **options).awake("a").awake("b")
    script.offer("0", "b", tokens=16)
    if not b_is_busy:
        script.leave("0")
    script.do(MemoryRead({CPU: 12 * GIB}))
    script.offer("1", "a", tokens=1008)
    return script


def test_limit_that_has_to_rise_puts_an_idle_engine_to_sleep():
    script = grow_beside(b_is_busy=False)
    (sleeps,) = script.offer("2", "a", tokens=1024)
    assert isinstance(sleeps, SleepEngine)
    assert script.finish("b") == [SetKvLimit(A, 1, 2032 * MIB), forward("2")]
    assert script.booked() == 5 * GIB + 2032 * MIB + GIB


def test_limit_that_has_to_rise_disturbs_nobody_who_serves():
    script = grow_beside(b_is_busy=True)
    assert script.offer("2", "a", tokens=1024) == []
    assert script.status("b") is EngineStatus.ACTIVE
    assert script.leave("1") == [forward("2")]


def test_stages_that_outgrow_the_limit_take_the_memory_of_an_idle_engine():
    script = grow_beside(b_is_busy=False)
    script.offer("2", "a", tokens=16)
    (sleeps,) = script.do(StageOutgrew(StageId("2"), 1024))
    assert isinstance(sleeps, SleepEngine)
    assert script.finish("b") == [SetKvLimit(A, 1, 2032 * MIB)]


@pytest.mark.parametrize("held", [True, False], ids=["held", "running"])
def test_withdrawn_stage_is_over_at_once_and_its_leaving_is_stale(held):
    script = NodeScript()
    script.offer("1", "a")
    if not held:
        script.finish("a")
    assert script.do(StageWithdrawn(StageId("1"))) == []
    assert script.engine("a").num_running + script.engine("a").num_waiting == 0
    before = dump(script.core)
    assert script.do(StageLeft(StageId("1"))) == []
    assert script.core.stats.stale == 1
    assert dump(script.core) == before


def test_unknown_model_is_refused_for_good():
    assert NodeScript().offer("1", "x") == [
        RefuseStage(StageId("1"), "this node does not run 'x'", permanent=True)
    ]


def test_model_that_can_never_fit_is_refused_for_good_with_sizes():
    script = NodeScript(budget=6 * GIB)
    (effect,) = script.offer("1", "a")
    assert effect == RefuseStage(
        StageId("1"),
        "'a' needs 7.0 GiB at least (weights 3.0 GiB, context 1.0 GiB, peak 1.0 GiB, start"
        " 1.0 GiB, least KV 1.0 GiB), cpu gives 6.0 GiB",
        permanent=True,
    )
    assert dict(script.core.snapshot(0.0).never_fits)["a"] == effect.reason


def test_endpoint_is_always_awake_never_booked_and_limited_by_its_batch():
    script = NodeScript(models=("e",), abilities=ENDPOINT, budget=0)
    effects = [script.offer(str(n), "e", tokens=10**6) for n in range(1, 7)]
    assert effects[:5] == [[forward(str(n), "e")] for n in range(1, 6)]
    assert effects[5] == [RefuseStage(StageId("6"), "full", retry_in_s=0.25)]
    assert script.booked() == 0


def test_news_is_published_once_for_a_start_and_not_for_stages_of_an_awake_engine():
    core = make_node_core()
    effects = core.handle(make_offer("1", "a"), 0.0)
    assert [type(e) for e in effects] == [
        RecordDecision,
        RecordDecision,
        StartEngine,
        PublishSnapshot,
    ]


# --- epochs and sequences -----------------------------------------------------------------------


def test_lower_epoch_is_refused_and_changes_nothing():
    script = NodeScript()
    script.do(EpochAnnounced(3))
    before = dump(script.core)
    (effect,) = script.offer("1", "a", epoch=2, seq=9)
    assert isinstance(effect, RefuseStage)
    assert not effect.permanent
    assert dump(script.core) == before
    assert script.do(EpochAnnounced(2)) == []
    assert script.core.stats.stale == 2


def test_higher_epoch_aborts_what_the_older_one_offered():
    script = NodeScript().awake("a")
    script.offer("run", "a", epoch=1, seq=1)
    script.offer("hold", "b", epoch=1, seq=2)
    assert script.core.snapshot(0.0).applied_seq == 2
    reason = "a newer coordinator took over"
    effects = script.do(EpochAnnounced(2))
    assert [e for e in effects if isinstance(e, AbortStage)] == [
        AbortStage(StageId("run"), Outcome.INTERRUPTED, reason),
        AbortStage(StageId("hold"), Outcome.INTERRUPTED, reason),
    ]
    assert (script.core.snapshot(0.0).epoch, script.core.snapshot(0.0).applied_seq) == (2, 0)
    assert script.engine("a").num_running == 1  # until the host says that it has left
    assert script.leave("run") == []
    assert script.engine("a").num_running == 0


def test_offer_of_a_higher_epoch_counts_as_its_announcement():
    script = NodeScript().awake("a")
    script.offer("1", "a", epoch=1, seq=5)
    effects = script.offer("2", "a", epoch=2, seq=1)
    assert [type(e) for e in effects] == [AbortStage, ForwardStage]
    assert script.core.snapshot(0.0).applied_seq == 1


def test_stage_offered_again_while_its_aborted_attempt_leaves_is_refused_for_a_moment():
    script = NodeScript().awake("a")
    script.offer("1", "a", epoch=1)
    (_, effect) = script.offer("1", "a", epoch=2, attempt=2)
    assert effect == RefuseStage(
        StageId("1"), "its former attempt has not left yet", retry_in_s=0.5
    )
    script.leave("1")
    assert script.offer("1", "a", epoch=2, attempt=2) == [forward("1")]


def test_next_attempt_that_comes_before_the_former_has_left_is_refused_for_a_moment():
    script = NodeScript().awake("a")
    script.offer("1", "a")
    (effect,) = script.offer("1", "a", attempt=2)
    assert (type(effect), effect.retry_in_s) == (RefuseStage, 0.5)
    assert script.engine("a").num_running == 1


def test_applied_seq_is_the_highest_even_for_refused_offers():
    script = NodeScript()
    script.offer("1", "x", seq=7)
    script.offer("2", "a", seq=6)
    assert script.core.snapshot(0.0).applied_seq == 7


# --- illegal ------------------------------------------------------------------------------------

HELD = [
    StageLeft(StageId("1")),
    StageSentFirstByte(StageId("1")),
    StageOutgrew(StageId("1"), 900),
    make_offer("1", "a"),
    StageOutgrew(StageId("1"), -1),
    StageRebooked(StageId("1"), 1, 0, 1, 1, -1),
]


@pytest.mark.parametrize("event", HELD, ids=lambda e: type(e).__name__)
def test_impossible_event_for_a_held_stage_raises_and_changes_nothing(event):
    script = NodeScript()
    script.offer("1", "a")
    before = dump(script.core)
    with pytest.raises(InvariantViolation) as raised:
        script.core.handle(event, 0.0)
    assert dump(script.core) == before
    assert raised.value.story == script.core.story("1") != ()


def test_story_of_a_stage_tells_what_became_of_it():
    script = NodeScript()
    script.offer("1", "a")
    script.wait(30)
    script.finish("a")
    script.leave("1")
    assert [line.split(": ")[1] for line in script.core.story("1")] == ["held", "forwarded", "left"]


def test_a_large_stage_is_not_overtaken_by_small_ones_for_ever():
    script = NodeScript(models=("a",), budget=7 * GIB, abilities=ELASTIC)
    script.offer("s0", "a", tokens=400)
    script.finish("a", seconds=30.0)
    script.do(MemoryRead({CPU: 6 * GIB}))
    script.offer("s1", "a", tokens=400)
    forwarded = {one.stage_id for one in script.offer("big", "a", tokens=700, key=10.0)}
    for n in range(2, 100):
        script.wait(5.0)
        effects = [*script.leave(f"s{n - 2}"), *script.offer(f"s{n}", "a", tokens=400, key=0.0)]
        forwarded |= {one.stage_id for one in effects if isinstance(one, ForwardStage)}
        if "big" in forwarded:
            break
    assert "big" in forwarded
    assert script.now_s <= 30.0 + MAX_PASSED_S + 20.0
