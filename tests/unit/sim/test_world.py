"""Times that a simulated fleet adds: messages, starts, wakes, contention; and what rows say."""

from __future__ import annotations

import dataclasses

import pytest

from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import IterationCost
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.units import GIB
from maestroctl.errors import InvariantViolation
from maestroctl.sim.jobs import Call, JobRow, StageRow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.prefix_cache import PrefixCache
from maestroctl.store.rows import JobRow as StoredJob
from maestroctl.store.rows import StageAttemptRow
from maestroctl.telemetry import metrics
from tests.unit.sim.support import make_profile, make_world, many_calls, one_call


def test_a_message_takes_half_a_round_trip_each_way() -> None:
    network = NetworkSpec(rtt_s=0.2, send_soon_s=0.0, snapshot_every_s=None)
    (row,) = make_world(network=network).run([one_call(0, 5.0, 100)]).stages
    assert row.dispatched_at == pytest.approx(5.0)
    assert row.first_byte_at == pytest.approx(5.0 + 0.1 + 0.001 + 0.1)
    assert row.ended_at == pytest.approx(5.0 + 0.1 + 0.100 + 0.1)


def test_the_first_stage_pays_the_cold_start_and_says_so() -> None:
    world = make_world([make_profile(cold_start_s=30.0)])
    (row,) = world.run([one_call(0, 1.0, 100)]).stages
    assert row.first_byte_at == pytest.approx(31.001)
    assert (row.activation, row.activation_s) == ("start", pytest.approx(30.0))


def test_a_model_that_gave_way_is_woken_in_profile_time() -> None:
    """One device has room for one of two models: they take turns, by sleep and wake."""
    profiles = [
        make_profile(name, cold_start_s=30.0, wake_s=2.0, sleep_s=0.5) for name in ("a", "b")
    ]
    world = make_world(profiles, memory=2 * GIB + GIB // 2)
    plans = [
        one_call(0, 0.0, 100, model="a"),
        one_call(1, 100.0, 100, model="b"),
        one_call(2, 200.0, 100, model="a"),
    ]
    result = world.run(plans)
    waited = [row.first_byte_at - row.arrived_at for row in result.stages if row.first_byte_at]
    # A start; then a sleep of the other and a start; then a sleep of the other and a wake.
    assert waited == pytest.approx([30.001, 30.501, 2.501], abs=1e-6)
    assert result.transitions == {"StartEngine": 2, "SleepEngine": 2, "WakeEngine": 1}


def test_two_engines_of_a_device_slow_each_other_by_gamma() -> None:
    cost = IterationCost(0.010, 0.0, 0.0, 0.0, gamma=1.5)
    profiles = [make_profile(name, iteration=cost) for name in ("a", "b")]
    alone = make_world(profiles).run([one_call(0, 1.0, 1000, model="a")])
    assert alone.stages[0].ended_at == pytest.approx(1.0 + 10.0)
    both = make_world(profiles).run(
        [one_call(0, 1.0, 1000, model="a"), one_call(1, 1.0, 1000, model="b")]
    )
    assert [row.ended_at for row in both.stages] == pytest.approx([16.0, 16.0], abs=0.02)


def test_contention_ends_when_the_other_engine_does() -> None:
    cost = IterationCost(0.010, 0.0, 0.0, 0.0, gamma=2.0)
    profiles = [make_profile(name, iteration=cost) for name in ("a", "b")]
    result = make_world(profiles).run(
        [one_call(0, 1.0, 1000, model="a"), one_call(1, 1.0, 100, model="b")]
    )
    ends = {row.model: row.ended_at for row in result.stages}
    assert ends["b"] == pytest.approx(1.0 + 100 * 0.020, abs=0.05)
    assert ends["a"] == pytest.approx(1.0 + 100 * 0.020 + 900 * 0.010, abs=0.05)


def test_a_stage_that_outgrows_its_booking_still_ends() -> None:
    """A wrong prediction books too little; KV is short and the last stage is recomputed."""
    profile = make_profile(max_batch=4, kv_pool_bytes=1024 * 2000, max_model_len=1500)
    # The prior books 612 tokens each, so three enter; they grow to 1,000 each.
    world = make_world([profile], error=PredictionError("prior"))
    result = world.run([one_call(i, 1.0 + 0.001 * i, 900, prompt=100) for i in range(3)])
    assert [row.outcome for row in result.stages] == [Outcome.FINISHED] * 3
    assert result.num_preempted > 0


def test_rows_have_the_fields_of_stored_rows_and_give_the_same_figures() -> None:
    stored = {field.name for field in dataclasses.fields(StageAttemptRow)}
    assert {field.name for field in dataclasses.fields(StageRow)} <= stored
    read = {"job_id", "service_class", "status", "submitted_at", "deadline_s", "finished_at"}
    assert read <= {field.name for field in dataclasses.fields(JobRow)}
    assert read <= {field.name for field in dataclasses.fields(StoredJob)}
    result = make_world().run(
        [one_call(0, 1.0, 101, deadline_s=0.2), one_call(1, 1.0, 101, deadline_s=0.15)]
    )
    assert metrics.slo_attainment(result.jobs, result.end_s) == 0.5
    assert metrics.ttft_s(result.stages[0]) == pytest.approx(0.001)
    assert metrics.tpot_s(result.stages[0]) == pytest.approx(0.001)


def test_a_stage_that_no_node_can_serve_is_an_error_and_no_endless_run() -> None:
    calls = [Call("x", (ModelName("m"),), 1, 10)]
    world = make_world([make_profile(weights_bytes=1 << 51)], policy=PolicySpec())
    try:
        result = world.run([many_calls(0, 1.0, calls)])
    except InvariantViolation:
        return
    assert result.jobs[0].status.value == "failed"


def test_without_jobs_nothing_is_played() -> None:
    world = make_world(network=NetworkSpec(snapshot_every_s=1.0))
    result = world.run([])
    assert (result.jobs, result.end_s, result.num_events) == ([], 0.0, 0)


def test_regular_snapshots_do_not_hide_a_job_that_waits_for_ever() -> None:
    world = make_world(network=NetworkSpec(snapshot_every_s=1.0, progress_every_s=1.0))
    world.coordinator.runner.num_open += 1  # a job that nothing will ever end
    with pytest.raises(InvariantViolation, match="1 jobs wait for ever"):
        world.run([one_call(0, 1.0, 5)])


def test_a_conversation_that_goes_on_prefills_only_what_is_new() -> None:
    cost = IterationCost(0.0, 0.0, 0.0, 0.001)
    calls = [
        Call("x", (ModelName("m"),), 1000, 100),
        Call("x", (ModelName("m"),), 1500, 1),
        Call("y", (ModelName("m"),), 1500, 1),
    ]
    plain = make_world([make_profile(iteration=cost)]).run([many_calls(0, 1.0, calls)])
    world = make_world([make_profile(iteration=cost)], prefix_cache=True)
    cached = world.run([many_calls(0, 1.0, calls)])
    assert plain.jobs[0].finished_at == pytest.approx(1.0 + 4.0)
    assert cached.jobs[0].finished_at == pytest.approx(1.0 + 1.0 + 0.4 + 1.5)
    assert [row.cached_tokens for row in cached.stages] == [0, 1100, 0]


def test_cached_prefixes_give_way_oldest_first() -> None:
    cache = PrefixCache()
    cache.keep("a", 100, 1000)
    cache.keep("b", 200, 1000)
    assert cache.take("b", 500, 250) == 200  # room for 250: "a" had to go
    assert cache.take("a", 500, 1000) == 0
    cache.keep("c", 300, 1000)
    assert cache.take("c", 200, 1000) == 199  # one token is always computed
