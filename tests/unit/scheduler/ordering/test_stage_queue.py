"""The queue: order inside a class, taking out of the middle, bounded memory."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.scheduler.coordinator_state import JobState, StageState
from maestroctl.scheduler.ordering.stage_queue import StageQueue
from maestroctl.testing.coordinator_builders import PREDICTION, make_stage


def queued(name: str, key: float = 0.0, models: tuple[str, ...] = ("m",)) -> StageState:
    stage = make_stage(name, models=models)
    job = JobState(stage.job_id, "", stage.service_class, 0.0, None)
    return StageState(stage, PREDICTION, job, key)


def names(queue: StageQueue) -> list[str]:
    return [stage.stage_id for stage in queue]


def test_lower_keys_go_first_and_ties_by_stage_id() -> None:
    queue = StageQueue()
    for name, key in (("c", 1.0), ("b", 1.0), ("a", 2.0), ("d", 0.0)):
        queue.push(queued(name, key), 0.0)
    assert names(queue) == ["d", "b", "c", "a"]


def test_a_stage_that_was_given_back_goes_before_all_others() -> None:
    queue = StageQueue()
    queue.push(queued("first", 0.0), 0.0)
    returned = queued("returned", 9.0)
    returned.rank = 0
    queue.push(returned, 0.0)
    assert names(queue) == ["returned", "first"]


def test_stages_that_can_go_to_other_places_are_in_other_classes() -> None:
    queue = StageQueue()
    plain, wide, excluded = queued("a"), queued("b", models=("m", "k")), queued("c")
    excluded.excluded = ((NodeName("n1"), ModelName("m")),)
    for stage in (plain, wide, excluded):
        queue.push(stage, 0.0)
    assert len(queue.classes()) == 3
    assert len(queue.serving(ModelName("m"))) == 3
    assert [c.is_flexible for c in queue.serving(ModelName("k")).values()] == [True]


def test_an_empty_class_is_forgotten() -> None:
    queue = StageQueue()
    stage = queued("a")
    queue.push(stage, 0.0)
    queue.remove(stage)
    assert not queue.classes()
    assert not queue.serving(ModelName("m"))
    assert queue.num_queued == 0


def test_a_stage_may_come_back_to_a_class_that_still_holds_its_old_entry() -> None:
    queue = StageQueue()
    stage, other = queued("a", 1.0), queued("b", 2.0)
    queue.push(stage, 0.0)
    queue.push(other, 0.0)
    queue.remove(stage)
    queue.push(stage, 0.0)
    assert names(queue) == ["a", "b"]
    assert queue.num_queued == 2


def test_struck_out_entries_do_not_pile_up() -> None:
    queue = StageQueue()
    keeper = queued("keeper", -1.0)
    queue_class = queue.push(keeper, 0.0)
    for number in range(10_000):
        stage = queued(f"s{number}", float(number))
        queue.push(stage, 0.0)
        queue.remove(stage)
        assert queue_class.heap_size() < 130
    assert names(queue) == ["keeper"]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 10), st.integers(0, 1)), max_size=60))
def test_it_behaves_like_a_sorted_list(steps: list[tuple[bool, float, int]]) -> None:
    queue = StageQueue()
    model: list[StageState] = []
    for number, (add, key, rank) in enumerate(steps):
        if add or not model:
            stage = queued(f"s{number}", key)
            stage.rank = rank
            queue.push(stage, 0.0)
            model.append(stage)
        else:
            queue.remove(model.pop(int(key * 7) % len(model)))
        model.sort(key=lambda stage: (stage.rank, stage.key, stage.stage_id))
        assert list(queue) == model
        for queue_class in queue.classes().values():
            first = queue_class.first()
            assert first is not None
            assert first[4] is model[0]
