"""Nodes come, speak, drain and go; slots are what they say, own reservations counted once."""

from __future__ import annotations

import pytest

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import NodeName, StageId, TimerId
from maestroctl.domain.outcome import Outcome
from maestroctl.scheduler.effects import DispatchStage, ResolveStage, SetTimer
from maestroctl.scheduler.events import NodeLost, StageCancelled, StageEnded, StageStarted
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator


def sid(name: str) -> StageId:
    return StageId(name)


def dispatched(effects: list[object]) -> list[tuple[str, str, str]]:
    """(stage, model, node) of each dispatch."""
    return [(e.stage_id, e.model, e.node) for e in effects if isinstance(e, DispatchStage)]


def ended(name: str, attempt: int = 1) -> StageEnded:
    return StageEnded(sid(name), attempt, Outcome.FINISHED, True)


def arrive(coordinator: Coordinator, *names: str, model: str = "m") -> list[tuple[str, str, str]]:
    effects: list[object] = []
    for name in names:
        effects += coordinator.tell(arrival(make_stage(name, models=[model])))
    return dispatched(effects)


def test_a_joining_node_takes_what_waits_up_to_its_slots(coordinator: Coordinator) -> None:
    arrive(coordinator, "a", "b", "c")
    effects = coordinator.tell(node_says(), 1.0)
    assert dispatched(effects) == [("a", "m", "n1"), ("b", "m", "n1")]
    assert coordinator.core.num_queued == 1


@pytest.mark.parametrize("applied_seq", [0, 1, 2])
def test_own_reservations_are_counted_once_whatever_the_snapshot_contains(
    coordinator: Coordinator, applied_seq: int
) -> None:
    coordinator.connect()
    arrive(coordinator, "a", "b")
    effects = coordinator.tell(node_says(make_snapshot(applied_seq=applied_seq)), 1.0)
    assert effects == []
    assert arrive(coordinator, "c") == []
    unapplied = coordinator.core._tables.fleet.nodes[NodeName("n1")].unapplied
    assert len(unapplied) == 2 - applied_seq


def test_more_slots_are_used_at_once_and_fewer_are_waited_out(coordinator: Coordinator) -> None:
    coordinator.connect()
    arrive(coordinator, "a", "b", "c", "d")
    three = make_snapshot(engines=[make_engine(slots=3)])
    assert dispatched(coordinator.tell(node_says(three))) == [("c", "m", "n1")]
    one = make_snapshot(engines=[make_engine(slots=1)])
    assert coordinator.tell(node_says(one)) == []
    assert dispatched(coordinator.tell(ended("a"))) == []
    assert dispatched(coordinator.tell(ended("b"))) == []
    assert dispatched(coordinator.tell(ended("c"))) == [("d", "m", "n1")]


def test_slots_of_replicas_add_up(coordinator: Coordinator) -> None:
    replicas = [make_engine(slots=1), make_engine(slots=2)]
    coordinator.tell(node_says(make_snapshot(engines=replicas)))
    assert len(arrive(coordinator, "a", "b", "c", "d")) == 3


def test_an_older_snapshot_is_stale(coordinator: Coordinator) -> None:
    coordinator.tell(node_says(make_snapshot(applied_seq=5)))
    late = make_snapshot(applied_seq=4, engines=[make_engine(slots=9)])
    assert coordinator.tell(node_says(late)) == []
    assert coordinator.core.counters.stale == 1
    assert coordinator.core.nodes()[0].engines[0].slots == 2


def test_a_dated_clock_alone_makes_no_snapshot_stale(coordinator: Coordinator) -> None:
    coordinator.tell(node_says(make_snapshot(as_of_s=5.0)))
    coordinator.tell(node_says(make_snapshot(as_of_s=4.999, engines=[make_engine(slots=9)])))
    assert coordinator.core.nodes()[0].engines[0].slots == 9


def test_an_engine_that_somebody_else_runs_has_no_profile(coordinator: Coordinator) -> None:
    coordinator.tell(node_says(make_snapshot(profiles=[])))
    assert arrive(coordinator, "a") == [("a", "m", "n1")]


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(make_snapshot(draining=True), id="draining"),
        pytest.param(make_snapshot(epoch=2), id="commanded by a newer coordinator"),
        pytest.param(make_snapshot(engines=[make_engine(slots=0)]), id="no slots"),
    ],
)
def test_a_node_that_takes_nothing_new_is_sent_nothing(
    coordinator: Coordinator, snapshot: object
) -> None:
    coordinator.connect()
    arrive(coordinator, "a")
    coordinator.tell(node_says(snapshot))  # type: ignore[arg-type]
    assert arrive(coordinator, "b") == []
    assert coordinator.tell(ended("a"))[0] == ResolveStage(sid("a"), Outcome.FINISHED)
    assert coordinator.core.num_queued == 1
    assert dispatched(coordinator.tell(node_says(make_snapshot(epoch=2)))) == []
    assert coordinator.core.num_queued == 1


def test_a_model_that_vanishes_keeps_its_running_stages(coordinator: Coordinator) -> None:
    coordinator.connect()
    arrive(coordinator, "a")
    coordinator.tell(node_says(make_snapshot(engines=[], never_fits={"m": "budget lowered"})))
    assert coordinator.core.num_in_flight == 1
    coordinator.tell(ended("a"))
    assert not coordinator.core._tables.fleet.places("m")  # type: ignore[arg-type]


# --- which node ---------------------------------------------------------------------------------


def two_nodes(coordinator: Coordinator, first: EngineStatus, second: EngineStatus) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    for name, status in (("n1", first), ("n2", second)):
        coordinator.tell(node_says(make_snapshot(name, [make_engine(status=status, node=name)])))


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        pytest.param(EngineStatus.SLEEPING, EngineStatus.ACTIVE, "n2", id="awake before asleep"),
        pytest.param(EngineStatus.WAKING, EngineStatus.IDLE, "n2", id="awake before waking"),
        pytest.param(EngineStatus.SLEEPING, EngineStatus.WAKING, "n2", id="waking before asleep"),
        pytest.param(EngineStatus.STOPPED, EngineStatus.STARTING, "n2", id="starting"),
        pytest.param(EngineStatus.IDLE, EngineStatus.IDLE, "n1", id="equal: by name"),
    ],
)
def test_the_node_with_the_model_warm_goes_first(
    coordinator: Coordinator, first: EngineStatus, second: EngineStatus, chosen: str
) -> None:
    two_nodes(coordinator, first, second)
    assert arrive(coordinator, "a") == [("a", "m", chosen)]
    candidates = coordinator.records[-1].record.candidates
    assert candidates[0].name == f"m@{chosen}"
    assert set(candidates[0].terms) == {"readiness", "load"}


def test_among_equals_the_least_loaded_node_goes_first(coordinator: Coordinator) -> None:
    two_nodes(coordinator, EngineStatus.IDLE, EngineStatus.IDLE)
    nodes = [node for _, _, node in arrive(coordinator, "a", "b", "c", "d", "e")]
    assert nodes == ["n1", "n2", "n1", "n2"]


def test_a_warm_node_without_a_slot_gives_way_to_a_cold_one(coordinator: Coordinator) -> None:
    two_nodes(coordinator, EngineStatus.IDLE, EngineStatus.STOPPED)
    assert [node for _, _, node in arrive(coordinator, "a", "b", "c")] == ["n1", "n1", "n2"]


# --- several models on one node -----------------------------------------------------------------


def test_a_full_model_is_skipped_and_another_one_is_not_starved(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    engines = [make_engine("m"), make_engine("other", 1, EngineStatus.STOPPED)]
    coordinator.tell(node_says(make_snapshot(engines=engines)))
    assert len(arrive(coordinator, "a", "b", "c", "d")) == 2
    assert arrive(coordinator, "o1", "o2", model="other") == [("o1", "other", "n1")]
    assert dispatched(coordinator.tell(ended("o1"))) == [("o2", "other", "n1")]
    assert dispatched(coordinator.tell(ended("a"))) == [("c", "m", "n1")]


def test_what_opens_together_is_given_out_in_one_order_over_all_models(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    for number, model in enumerate(["m", "other", "other", "m"]):
        stage = make_stage(f"s{number}", models=[model], arrival_s=float(number))
        coordinator.tell(arrival(stage))
    engines = [make_engine("m"), make_engine("other")]
    effects = coordinator.tell(node_says(make_snapshot(engines=engines)), 9.0)
    assert [stage for stage, _, _ in dispatched(effects)] == ["s0", "s1", "s2", "s3"]


# --- losing nodes -------------------------------------------------------------------------------


def test_stages_of_a_lost_node_move_on_or_fail_by_their_first_byte(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(nodes=("n1", "n2")))
    coordinator.connect()
    arrive(coordinator, "a", "b")
    coordinator.tell(StageStarted(sid("a"), 1))
    coordinator.tell(node_says(make_snapshot("n2")))
    effects = coordinator.tell(NodeLost(NodeName("n1"), "cable"), 1.0)
    assert effects[0] == ResolveStage(sid("a"), Outcome.FAILED, "node n1 was lost: cable")
    assert dispatched(effects) == [("b", "m", "n2")]


def test_a_stage_of_the_only_node_waits_for_its_return(coordinator: Coordinator) -> None:
    coordinator.connect()
    arrive(coordinator, "a")
    effects = coordinator.tell(NodeLost(NodeName("n1"), "cable"), 1.0)
    assert effects == [
        SetTimer(TimerId("queue-timeout"), 601.0),
        SetTimer(TimerId("no-node"), 6.0),
    ]
    assert dispatched(coordinator.tell(node_says(), 3.0)) == [("a", "m", "n1")]


def test_a_node_that_returns_has_empty_slots(coordinator: Coordinator) -> None:
    coordinator.connect()
    arrive(coordinator, "a", "b")
    coordinator.tell(StageStarted(sid("a"), 1))
    coordinator.tell(StageStarted(sid("b"), 1))
    coordinator.tell(NodeLost(NodeName("n1"), "cable"))
    coordinator.tell(node_says())
    assert len(arrive(coordinator, "c", "d", "e")) == 2


def test_losing_an_unknown_node_is_stale(coordinator: Coordinator) -> None:
    assert coordinator.tell(NodeLost(NodeName("n9"), "gone")) == []
    assert coordinator.core.counters.stale == 1


def test_a_stage_moves_to_another_candidate_when_its_model_is_lost(
    coordinator: Coordinator,
) -> None:
    coordinator.begin(make_fleet(("m", "other"), {"n1": ["m"], "n2": ["other"]}))
    coordinator.connect()
    other = [make_engine("other", slots=1, node="n2")]
    coordinator.tell(node_says(make_snapshot("n2", other)))
    arrive(coordinator, "a", "b")
    coordinator.tell(arrival(make_stage("c", models=["m", "other"])))
    assert coordinator.core.queued()[0].models == ("m",)
    effects = coordinator.tell(NodeLost(NodeName("n1"), "cable"))
    assert dispatched(effects) == [("c", "other", "n2")]


def test_an_undecided_stage_takes_the_first_model_that_connects(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other"), {"n1": ["m"], "n2": ["other"]}))
    coordinator.tell(arrival(make_stage("c", models=["m", "other"])))
    other = [make_engine("other", node="n2")]
    effects = coordinator.tell(node_says(make_snapshot("n2", other)))
    assert dispatched(effects) == [("c", "other", "n2")]


def test_a_cancelled_stage_of_a_draining_node_frees_its_slot(coordinator: Coordinator) -> None:
    coordinator.connect()
    arrive(coordinator, "a", "b")
    coordinator.tell(node_says(make_snapshot(draining=True)))
    coordinator.tell(StageCancelled(sid("a")))
    assert dispatched(coordinator.tell(node_says())) == []
    assert arrive(coordinator, "c") == [("c", "m", "n1")]


def test_a_profile_says_what_a_model_without_engine_is_assumed_to_take(
    coordinator: Coordinator,
) -> None:
    small_pool = make_profile("m", max_batch=4)
    coordinator.tell(node_says(make_snapshot(engines=[], profiles=[small_pool])))
    assert len(arrive(coordinator, *"abcdefgh")) == 5
