"""How long a stage waits, and what it is told when waiting has no point."""

from __future__ import annotations

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import (
    CoordinatorEffect,
    DispatchStage,
    ResolveStage,
    SetTimer,
    WithdrawStage,
)
from maestroctl.scheduler.events import (
    NodeLost,
    ShutdownRequested,
    StageCancelled,
    StageEnded,
    StageRefused,
    StageStarted,
    TimerFired,
)
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator

NO_NODE = TimerFired(TimerId("no-node"))
TIMEOUT = TimerFired(TimerId("queue-timeout"))
STALL = TimerFired(TimerId("queue-stall"))


def sid(name: str) -> StageId:
    return StageId(name)


def resolved(effects: list[CoordinatorEffect]) -> dict[str, Outcome]:
    return {e.stage_id: e.outcome for e in effects if isinstance(e, ResolveStage)}


def fill(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage("a")))
    coordinator.tell(arrival(make_stage("b")))


# --- no node ------------------------------------------------------------------------------------


def test_without_a_node_an_outside_caller_is_told_after_a_grace(coordinator: Coordinator) -> None:
    assert coordinator.tell(arrival(make_stage()), 1.0) == [
        SetTimer(TimerId("queue-timeout"), 601.0),
        SetTimer(TimerId("no-node"), 6.0),
    ]
    coordinator.tell(arrival(make_stage("later", arrival_s=4.0)), 4.0)
    effects = coordinator.tell(NO_NODE, 6.0)
    assert effects == [
        ResolveStage(sid("s1"), Outcome.UNAVAILABLE, "no node is connected to serve m", 5.0),
        SetTimer(TimerId("no-node"), 9.0),
    ]
    assert resolved(coordinator.tell(NO_NODE, 9.0)) == {"later": Outcome.UNAVAILABLE}


def test_without_a_node_a_workflow_stage_waits(coordinator: Coordinator) -> None:
    coordinator.tell(arrival(make_stage(external=False)), 1.0)
    for _ in range(5):
        effects = coordinator.tell(STALL, 601.0)
        assert effects == [SetTimer(TimerId("queue-stall"), 1201.0)]
    assert isinstance(coordinator.tell(node_says(), 10_000.0)[0], DispatchStage)


def test_a_node_within_the_grace_serves_as_if_nothing_were(coordinator: Coordinator) -> None:
    coordinator.tell(arrival(make_stage()), 1.0)
    assert isinstance(coordinator.tell(node_says(), 5.9)[0], DispatchStage)
    assert coordinator.tell(NO_NODE, 6.0) == []


def test_when_the_only_node_of_a_model_is_away_the_caller_hears_which_are_there(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(("m", "other"), {"n1": ["m"], "n2": ["other"]}))
    coordinator.tell(node_says(make_snapshot("n2", [make_engine("other", node="n2")])))
    coordinator.tell(arrival(make_stage()), 1.0)
    assert coordinator.tell(NO_NODE, 6.0) == [
        ResolveStage(
            sid("s1"), Outcome.UNAVAILABLE, "none of the connected nodes (n2) serves m", 5.0
        )
    ]


@pytest.mark.parametrize("external", [True, False])
def test_what_the_whole_fleet_can_never_run_is_unavailable_at_once(
    coordinator: Coordinator, external: bool
) -> None:
    never = make_snapshot(engines=[], never_fits={"m": "needs 9 GiB of 4"})
    coordinator.tell(node_says(never))
    effects = coordinator.tell(arrival(make_stage(external=external)), 1.0)
    assert effects[-1] == ResolveStage(
        sid("s1"), Outcome.UNAVAILABLE, "m can never run on n1: needs 9 GiB of 4"
    )


def test_what_waits_is_told_when_the_last_hope_connects_without_it(
    coordinator: Coordinator,
) -> None:
    coordinator.tell(arrival(make_stage(external=False)), 1.0)
    effects = coordinator.tell(node_says(make_snapshot(engines=[])), 2.0)
    assert effects == [
        ResolveStage(sid("s1"), Outcome.UNAVAILABLE, "no node of the fleet can run m")
    ]


# --- failed engines -----------------------------------------------------------------------------


def failed_engine() -> object:
    return node_says(make_snapshot(engines=[make_engine(slots=2, status=EngineStatus.FAILED)]))


def test_a_failed_engine_is_asked_and_its_reason_passed_on(coordinator: Coordinator) -> None:
    coordinator.tell(failed_engine())  # type: ignore[arg-type]
    coordinator.tell(arrival(make_stage()), 1.0)
    effects = coordinator.tell(StageRefused(sid("s1"), 1, "exit 1", {}, False, 60.0), 1.0)
    assert effects[-1] == ResolveStage(sid("s1"), Outcome.UNAVAILABLE, "exit 1", 5.0)
    effects = coordinator.tell(arrival(make_stage("s2")), 2.0)
    assert resolved(effects) == {"s2": Outcome.UNAVAILABLE}
    coordinator.tell(TimerFired(TimerId("unblock/m@n1")), 61.0)
    assert isinstance(coordinator.tell(arrival(make_stage("s3")), 61.0)[0], DispatchStage)


def test_a_workflow_waits_for_a_failed_engine_to_be_tried_again(coordinator: Coordinator) -> None:
    coordinator.tell(failed_engine())  # type: ignore[arg-type]
    coordinator.tell(arrival(make_stage(external=False)), 1.0)
    effects = coordinator.tell(StageRefused(sid("s1"), 1, "exit 1", {}, False, 60.0), 1.0)
    assert resolved(effects) == {}
    effects = coordinator.tell(TimerFired(TimerId("unblock/m@n1")), 61.0)
    assert isinstance(effects[0], DispatchStage)


def test_a_candidate_whose_engine_works_is_preferred(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    engines = [make_engine("m", status=EngineStatus.FAILED), make_engine("other")]
    coordinator.tell(node_says(make_snapshot(engines=engines)))
    effects = coordinator.tell(arrival(make_stage(models=["m", "other"])))
    assert isinstance(effects[0], DispatchStage)
    assert effects[0].model == "other"


# --- too long, too many -------------------------------------------------------------------------


def test_an_outside_caller_is_told_when_its_time_in_the_queue_is_up(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(policy=limited(queue_timeout_s=10.0)))
    fill(coordinator)
    assert coordinator.tell(arrival(make_stage("c")), 1.0) == [
        SetTimer(TimerId("queue-timeout"), 11.0)
    ]
    assert coordinator.tell(arrival(make_stage("d")), 3.0) == []
    assert coordinator.tell(TIMEOUT, 11.0) == [
        ResolveStage(sid("c"), Outcome.UNAVAILABLE, "no free slot for m in 10 s", 5.0),
        SetTimer(TimerId("queue-timeout"), 13.0),
    ]


def test_being_refused_does_not_start_the_time_again(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(policy=limited(queue_timeout_s=10.0)))
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")), 1.0)
    coordinator.tell(StageCancelled(sid("a")), 8.0)
    coordinator.tell(StageRefused(sid("c"), 1, "no room"), 9.0)
    effects = coordinator.tell(TIMEOUT, 11.0)
    assert effects[0] == ResolveStage(
        sid("c"), Outcome.UNAVAILABLE, "no free slot for m in 10 s; last: no room", 5.0
    )


def test_a_stage_that_comes_back_after_its_time_is_given_up_at_once(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(policy=limited(queue_timeout_s=10.0)))
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")), 1.0)
    coordinator.tell(StageCancelled(sid("a")), 8.0)
    assert coordinator.tell(TIMEOUT, 11.0) == []
    effects = coordinator.tell(StageRefused(sid("c"), 1, "no room"), 12.0)
    assert effects == [SetTimer(TimerId("queue-timeout"), 11.0)]
    assert resolved(coordinator.tell(TIMEOUT, 12.0)) == {"c": Outcome.UNAVAILABLE}


def test_a_workflow_stage_waits_as_long_as_its_model_serves_somebody(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(policy=limited(queue_timeout_s=10.0)))
    fill(coordinator)
    effects = coordinator.tell(arrival(make_stage("c", external=False)), 1.0)
    assert effects == [SetTimer(TimerId("queue-stall"), 11.0)]
    coordinator.tell(StageStarted(sid("a"), 1), 8.0)
    assert coordinator.tell(STALL, 11.0) == [SetTimer(TimerId("queue-stall"), 21.0)]
    effects = coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 20.0)
    assert isinstance(effects[1], DispatchStage)


def test_a_workflow_stage_does_not_wait_for_what_never_moves(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(policy=limited(queue_timeout_s=10.0)))
    coordinator.connect()
    coordinator.tell(arrival(make_stage("c", external=False)), 1.0)
    coordinator.tell(StageRefused(sid("c"), 1, "no room"), 2.0)
    coordinator.tell(arrival(make_stage("young", external=False)), 9.0)
    effects = coordinator.tell(STALL, 12.0)
    assert effects == [
        ResolveStage(
            sid("c"), Outcome.UNAVAILABLE, "no free slot for m in 10 s; last: no room", 5.0
        ),
        SetTimer(TimerId("queue-stall"), 19.0),
    ]
    assert resolved(coordinator.tell(STALL, 19.0)) == {"young": Outcome.UNAVAILABLE}


def test_a_full_queue_rejects_and_says_when_to_come_back(coordinator: Coordinator) -> None:
    coordinator.begin(max_queued=1)
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    assert coordinator.tell(arrival(make_stage("d")), 1.0) == [
        ResolveStage(sid("d"), Outcome.REJECTED, "1 stages wait already", 1.0)
    ]
    assert [view.stage_id for view in coordinator.core.queued()] == ["c"]


def test_a_refused_stage_returns_to_a_full_queue(coordinator: Coordinator) -> None:
    coordinator.begin(max_queued=1)
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    coordinator.tell(StageRefused(sid("a"), 1, "no room"))
    assert [view.stage_id for view in coordinator.core.queued()] == ["a", "c"]


# --- the end ------------------------------------------------------------------------------------


def test_a_drain_ends_what_waits_and_lets_run_what_runs(coordinator: Coordinator) -> None:
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    coordinator.tell(arrival(make_stage("d", external=False)))
    why = "the coordinator is shutting down"
    assert coordinator.tell(ShutdownRequested(True)) == [
        ResolveStage(sid("c"), Outcome.UNAVAILABLE, why, 5.0),
        ResolveStage(sid("d"), Outcome.INTERRUPTED, why),
    ]
    assert coordinator.tell(arrival(make_stage("e"))) == [
        ResolveStage(sid("e"), Outcome.UNAVAILABLE, why, 5.0)
    ]
    assert coordinator.tell(arrival(make_stage("f", external=False))) == [
        ResolveStage(sid("f"), Outcome.INTERRUPTED, why)
    ]
    assert coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True)) == [
        ResolveStage(sid("a"), Outcome.FINISHED)
    ]
    assert coordinator.tell(StageRefused(sid("b"), 1, "no room")) == [
        ResolveStage(sid("b"), Outcome.UNAVAILABLE, why, 5.0)
    ]


def test_while_draining_a_failed_attempt_is_not_tried_again(coordinator: Coordinator) -> None:
    coordinator.connect()
    coordinator.tell(arrival(make_stage("a", external=False)))
    coordinator.tell(ShutdownRequested(True))
    effects = coordinator.tell(NodeLost(NodeName("n1"), "stopped"))
    assert resolved(effects) == {"a": Outcome.INTERRUPTED}


def test_without_a_drain_everything_is_interrupted(coordinator: Coordinator) -> None:
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c")))
    coordinator.tell(StageStarted(sid("a"), 1))
    coordinator.tell(ShutdownRequested(True))
    effects = coordinator.tell(ShutdownRequested(False))
    assert resolved(effects) == {"a": Outcome.INTERRUPTED, "b": Outcome.INTERRUPTED}
    withdrawn = [effect for effect in effects if isinstance(effect, WithdrawStage)]
    assert [effect.stage_id for effect in withdrawn] == ["a", "b"]
    assert coordinator.tell(StageEnded(sid("a"), 1, Outcome.CANCELLED, True)) == []


def test_a_timer_nobody_waits_for_is_stale(coordinator: Coordinator) -> None:
    assert coordinator.tell(NO_NODE) == []
    assert coordinator.core.counters.stale == 1
