"""What the coordinator says of its decisions, advises and counts."""

from __future__ import annotations

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.scheduler.effects import (
    AdvisePrewarm,
)
from maestroctl.scheduler.events import (
    StageEnded,
)
from maestroctl.scheduler.routing.look_ahead import PrewarmAdvice
from maestroctl.testing.coordinator_builders import (
    arrival,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    node_says,
)
from tests.unit.scheduler.conftest import Coordinator, dispatch, fill, sid


def test_a_stage_that_waits_has_an_order_record_and_says_so_when_it_goes(
    coordinator: Coordinator,
) -> None:
    coordinator.connect()
    fill(coordinator)
    coordinator.tell(arrival(make_stage("c", arrival_s=1.0)), 1.0)
    coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True), 2.5)
    order, route = [effect.record for effect in coordinator.records[-2:]]
    assert (order.kind, order.choice) == ("order", "queue")
    assert order.reason == "no free slot for m; 0 other stages wait; key 1"
    assert route.reason == "the only place with a free slot, after 1.500 s in the queue"


def test_a_choice_among_models_is_recorded(coordinator: Coordinator) -> None:
    coordinator.begin(make_fleet(("m", "other")))
    coordinator.tell(node_says(make_snapshot(engines=[make_engine("other")])))
    effects = coordinator.tell(arrival(make_stage(models=["m", "other"])))
    assert effects == [dispatch(model="other")]
    record = coordinator.records[0].record
    assert (record.kind, record.choice) == ("choose_model", "other")


def test_the_look_ahead_is_asked_at_each_dispatch(coordinator: Coordinator) -> None:
    class Oracle:
        def advise(self, stage, _fleet, now_s):  # type: ignore[no-untyped-def]
            assert stage.place is not None
            nodes = (NodeName("n1"), NodeName("n2"))
            return [PrewarmAdvice(node, ModelName("next"), 0.9, now_s + 5.0) for node in nodes]

    coordinator.begin(look_ahead=Oracle())
    coordinator.connect()
    assert coordinator.tell(arrival(make_stage()), 1.0) == [
        dispatch(),
        AdvisePrewarm(NodeName("n1"), ModelName("next"), 0.9, 6.0, 1, seq=1),  # after the stage
        AdvisePrewarm(NodeName("n2"), ModelName("next"), 0.9, 6.0, 1, seq=0),
    ]
    assert coordinator.tell(arrival(make_stage("s2")), 1.0)[0] == dispatch("s2", seq=2)


def test_attained_service_counts_neither_the_queue_nor_the_wake(coordinator: Coordinator) -> None:
    engine = make_engine(slots=1, status=EngineStatus.SLEEPING, ready_in_s=2.0)
    coordinator.tell(node_says(make_snapshot(engines=[engine])))
    coordinator.tell(arrival(make_stage("a", job="j")), 0.0)
    coordinator.tell(arrival(make_stage("b", job="j")), 0.0)
    coordinator.tell(StageEnded(sid("a"), 1, Outcome.FINISHED, True, Usage(50, 30)), 10.0)
    coordinator.tell(StageEnded(sid("b"), 1, Outcome.FINISHED, True, Usage(50, 12)), 13.0)
    job = coordinator.core.job(JobId("j"))
    assert job is not None
    assert (job.attained_s, job.attained_tokens) == (8.0 + 3.0, 42)


def test_a_model_with_no_engine_yet_is_offered_its_assumed_slots(coordinator: Coordinator) -> None:
    profile = make_profile("m", max_batch=2)
    coordinator.tell(node_says(make_snapshot(engines=[], profiles=[profile])))
    for name in ("a", "b", "c", "d"):
        coordinator.tell(arrival(make_stage(name)))
    assert coordinator.core.num_in_flight == 3
    assert coordinator.core.num_queued == 1
