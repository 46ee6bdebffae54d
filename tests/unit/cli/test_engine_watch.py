"""Times of transitions, from what nodes say."""

from __future__ import annotations

import pytest

from maestroctl.cli.demo.engine_watch import EngineWatch, Transition
from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import ClusterName, EngineId, ModelName, NodeName
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot

S = EngineStatus


def snapshot(failure: str | None = None, **statuses: EngineStatus) -> NodeSnapshot:
    engines = tuple(
        EngineSnapshot(
            engine_id=EngineId(f"{model}@n"),
            model=ModelName(model),
            status=status,
            tier=ResidencyTier.DISK,
            generation=1,
            slots=1,
            num_running=int(status is S.ACTIVE),
            num_waiting=0,
            ready_in_s=0.0,
            weights_bytes=0,
            context_bytes=0,
            kv_limit_bytes=0,
            kv_booked_bytes=0,
            failure=failure,
        )
        for model, status in statuses.items()
    )
    return NodeSnapshot(NodeName("n"), ClusterName("c"), 0.0, 1, 0, (), engines, ())


def watched(*steps: tuple[float, EngineStatus]) -> tuple[EngineWatch, list[str]]:
    watch, lines = EngineWatch.of(["a"]), []
    for at_s, status in steps:
        lines += watch.see(snapshot(a=status), at_s)
    return watch, lines


def test_start_sleep_and_wake_are_timed() -> None:
    watch, lines = watched(
        (0.0, S.STARTING), (30.0, S.ACTIVE), (31.0, S.IDLE), (40.0, S.FALLING_ASLEEP),
        (40.5, S.SLEEPING), (50.0, S.WAKING), (52.5, S.ACTIVE),
    )  # fmt: skip
    assert watch.times == {
        Transition.START: [30.0],
        Transition.SLEEP: [0.5],
        Transition.WAKE: [2.5],
    }
    assert watch.cold_over_wake == pytest.approx(12.0)
    assert lines[:2] == ["a: cold start", "a: cold start done in 30.0 s"]
    assert watch.engines["a"].counts == {
        Transition.START: 1,
        Transition.SLEEP: 1,
        Transition.WAKE: 1,
    }


def test_one_transition_right_after_another_is_one_line() -> None:
    _, lines = watched((0.0, S.FALLING_ASLEEP), (0.5, S.WAKING))
    assert lines == ["a: sleep", "a: sleep done in 0.5 s; a: wake"]


def test_failed_transition_is_said_and_not_timed() -> None:
    watch, lines = watched((0.0, S.WAKING), (1.0, S.FAILED))
    assert watch.times == {}
    assert lines[-1] == "a: wake ended as failed"


def test_model_that_does_not_start_twice_is_hopeless_with_its_reason() -> None:
    watch = EngineWatch.of(["a"])
    for at_s in (0.0, 10.0):
        assert watch.hopeless is None
        watch.see(snapshot(a=S.STARTING), at_s)
        watch.see(snapshot(failure="no disk", a=S.STOPPED), at_s + 1)
    assert watch.hopeless == "a does not start: no disk"


def test_most_engines_awake_at_once_are_counted_while_all_are_up() -> None:
    watch = EngineWatch.of(["a", "b", "c"])
    watch.see(snapshot(a=S.ACTIVE, b=S.ACTIVE), 0.0)
    assert watch.most_awake == 0
    watch.see(snapshot(a=S.ACTIVE, b=S.SLEEPING, c=S.WAKING), 1.0)
    assert watch.most_awake == 1
    watch.see(snapshot(a=S.IDLE, b=S.SLEEPING, c=S.ACTIVE), 2.0)
    assert watch.most_awake == 2
    assert watch.engines["a"].status is S.IDLE


def test_nothing_seen_is_nothing_to_compare() -> None:
    watch, _ = watched((0.0, S.STARTING), (5.0, S.IDLE))
    assert watch.cold_over_wake is None
    assert watch.summary() == {
        "cold start": {"count": 1, "median_s": 5.0, "least_s": 5.0, "most_s": 5.0}
    }
