"""What a node tells about itself."""

import pytest

from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import DeviceName, ModelName, NodeName
from maestroctl.domain.llm import ModelSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.snapshot import DeviceSnapshot
from maestroctl.domain.units import GIB, MIB
from maestroctl.scheduler.effects import PublishSnapshot
from maestroctl.scheduler.events import MemoryRead
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.testing.builders import (
    CPU,
    NodeScript,
    engine_of,
    make_node_core,
    make_node_profile,
    make_offer,
)


def test_devices_tell_budget_booked_and_read():
    script = NodeScript(host=3 * GIB).awake("a")
    script.do(MemoryRead({}, {engine_of("a"): 6 * GIB}))
    assert script.core.snapshot(1.0).devices == (
        DeviceSnapshot(CPU, 10 * GIB, 7 * GIB, 6 * GIB),
        DeviceSnapshot(DeviceName("host"), 3 * GIB, 0, None),
    )


def test_every_model_has_an_engine_and_a_profile_whatever_its_status():
    snapshot = NodeScript().awake("a").core.snapshot(0.0)
    assert [(e.model, str(e.status)) for e in snapshot.engines] == [
        ("a", "idle"),
        ("b", "stopped"),
        ("c", "stopped"),
    ]
    assert [p.model for p in snapshot.profiles] == ["a", "b", "c"]


def test_ready_in_counts_down_through_a_start_and_a_wake():
    script = NodeScript()
    assert script.engine("a").ready_in_s == 30.0
    script.offer("1", "a")
    script.wait(10)
    assert script.engine("a").ready_in_s == 20.0
    script.finish("a")
    assert script.engine("a").ready_in_s == 0.0
    script.leave("1")
    script.ask(1, ModelAction.SLEEP, "a")
    assert script.engine("a").ready_in_s == 2.5
    script.finish("a")
    assert script.engine("a").ready_in_s == 2.0


def test_back_off_and_cool_down_are_part_of_ready_in():
    script = NodeScript()
    script.offer("1", "a")
    script.fail("a")
    assert script.engine("a").ready_in_s == 31.0
    script.wait(1)
    script.offer("2", "a")
    script.fail("a", permanent=True)
    assert script.engine("a").ready_in_s == 90.0


def test_slots_follow_the_mix_of_stages_inside_the_kv_limit():
    script = NodeScript(specs={"a": {"max_batch": 16}}, profiles={"a": {"max_batch": 16}})
    script.awake("a")
    assert script.engine("a").slots == 5  # 2,048 tokens of KV, stages of 512 assumed
    script.offer("1", "a", tokens=64)
    assert script.engine("a").slots == 17
    script.offer("2", "a", tokens=1024)
    assert script.engine("a").slots == 4  # mean booking 544: 3 fit, and one more


def test_curve_rises_in_bytes_and_cost_and_has_at_most_eight_points():
    names = [f"m{n}" for n in range(9)]
    script = NodeScript(models=names, budget=100 * GIB).awake(*names)
    curve = script.core.snapshot(0.0).curve
    assert 2 <= len(curve) <= 8
    assert list(curve) == sorted(curve)
    assert curve[-1][0] == 9 * 7 * GIB
    assert NodeScript().core.snapshot(0.0).curve == ()


def test_waiting_is_news_when_it_begins_and_when_it_ends():
    core = make_node_core()
    core.handle(make_offer("1", "a"), 0.0)
    assert PublishSnapshot() not in core.handle(make_offer("2", "a"), 0.0)
    assert PublishSnapshot() in core.handle(make_offer("3", "b"), 0.0)


def test_node_runs_only_the_models_it_is_given():
    core = NodeCore(
        NodeSpec(NodeName("n"), models=(ModelName("a"),)),
        PolicySpec(),
        {CPU: 10 * GIB},
        {ModelName("a"): make_node_profile("a")},
        {ModelName(m): ModelSpec(ModelName(m)) for m in ("a", "b")},
        {},
    )
    assert [e.model for e in core.snapshot(0.0).engines] == ["a"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (PolicySpec(residency="psychic"), "unknown residency policy 'psychic'; known: lru"),
        (PolicySpec(degradation="none"), "unknown degradation policy 'none'"),
    ],
)
def test_unknown_policy_is_an_error_that_names_the_known_ones(policy, message):
    with pytest.raises(ValueError, match=message):
        make_node_core(policy=policy)


def test_managed_model_without_a_profile_is_an_error():
    with pytest.raises(ValueError, match="no profile"):
        NodeCore(
            NodeSpec(NodeName("n")),
            PolicySpec(),
            {CPU: GIB},
            {},
            {ModelName("a"): ModelSpec(ModelName("a"))},
            {},
        )


def test_kv_bookings_are_told():
    script = NodeScript().awake("a")
    script.offer("1", "a", tokens=100)
    engine = script.engine("a")
    assert (engine.kv_booked_bytes, engine.kv_limit_bytes) == (112 * MIB, 2 * GIB)
