"""Which steps become ready: joins, fan-outs, loops, resuming."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from maestroctl.domain.ids import JobId
from maestroctl.domain.workflow import WorkflowSpec
from maestroctl.errors import ConfigError, InvariantViolation
from maestroctl.scheduler.effects import PrepareStep, RunStep
from maestroctl.scheduler.events import StepRef, StepResult
from maestroctl.scheduler.workflow_progress import (
    ResumeConflict,
    StepEffect,
    WorkflowGraph,
    WorkflowProgress,
)
from maestroctl.testing.coordinator_builders import make_step, make_workflow

JOB = JobId("j")
LOOP = make_workflow(
    make_step("plan"),
    make_step("code", ["plan"]),
    make_step("review", ["code"], back_to="code", at_most=3),
    make_step("docs", ["code"]),
    make_step("end", ["review", "docs"]),
)


def walk(spec: WorkflowSpec, *finished: StepResult) -> WorkflowProgress:
    """A job that has begun."""
    progress = WorkflowProgress(JOB, spec, finished)
    progress.begin()
    return progress


def do(
    progress: WorkflowProgress, step: str, visit: int = 1, repeat: bool = False
) -> list[StepEffect]:
    """Prepare and finish a step of one item; what becomes ready."""
    assert progress.prepared(step, visit, 1) == [RunStep(JOB, StepRef(step, visit))]
    steps = progress.finished(StepResult(StepRef(step, visit), 1, repeat))
    assert steps is not None
    return steps


def prepare(*steps: str, visit: int = 1) -> list[PrepareStep]:
    return [PrepareStep(JOB, step, visit) for step in steps]


def test_steps_that_wait_for_nothing_begin_together_in_the_order_of_the_file() -> None:
    spec = make_workflow(make_step("b"), make_step("a"), make_step("join", ["a", "b"]))
    progress = WorkflowProgress(JOB, spec)
    assert progress.begin() == prepare("b", "a")
    assert do(progress, "a") == []
    assert do(progress, "b") == prepare("join")
    assert do(progress, "join") == []
    assert progress.is_finished


def test_a_loop_runs_its_body_again_until_it_is_content() -> None:
    progress = walk(LOOP)
    do(progress, "plan")
    assert do(progress, "code") == prepare("review")
    assert do(progress, "review", repeat=True) == prepare("code", visit=2)
    assert do(progress, "code", 2) == prepare("review", visit=2)
    assert do(progress, "review", 2) == prepare("docs")
    assert do(progress, "docs") == prepare("end")


def test_a_loop_ends_after_at_most_so_many_visits() -> None:
    progress = walk(LOOP)
    do(progress, "plan")
    for visit in (1, 2):
        do(progress, "code", visit)
        assert do(progress, "review", visit, repeat=True) == prepare("code", visit=visit + 1)
    do(progress, "code", 3)
    assert do(progress, "review", 3, repeat=True) == prepare("docs")


def test_a_step_may_loop_on_itself() -> None:
    spec = make_workflow(make_step("try", back_to="try", at_most=2), make_step("use", ["try"]))
    progress = walk(spec)
    assert do(progress, "try", repeat=True) == prepare("try", visit=2)
    assert do(progress, "try", 2, repeat=True) == prepare("use")


def test_one_unhappy_item_of_a_fan_out_sends_the_whole_step_back() -> None:
    spec = make_workflow(
        make_step("split"), make_step("work", ["split"], back_to="split", fan_out=True)
    )
    progress = walk(spec)
    do(progress, "split")
    progress.prepared("work", 1, 2)
    assert progress.finished(StepResult(StepRef("work", 1, 1), 2, repeat=True)) == []
    assert progress.finished(StepResult(StepRef("work", 1, 0), 2)) == prepare("split", visit=2)


def test_a_nested_loop_runs_inside_each_round_of_the_outer_one() -> None:
    spec = make_workflow(
        make_step("a"),
        make_step("b", ["a"]),
        make_step("c", ["b"], back_to="b", at_most=9),
        make_step("d", ["c"], back_to="a", at_most=2),
    )
    progress = walk(spec)
    do(progress, "a")
    do(progress, "b")
    do(progress, "c", repeat=True)
    do(progress, "b", 2)
    assert do(progress, "c", 2) == prepare("d")
    assert do(progress, "d", repeat=True) == prepare("a", visit=2)
    assert do(progress, "a", 2) == prepare("b", visit=3)
    do(progress, "b", 3)
    assert do(progress, "c", 3, repeat=True) == prepare("b", visit=4)


def test_a_reader_outside_two_loops_waits_for_both() -> None:
    """`side` reads only `a`, which the first loop repeats, whose end the second loop repeats."""
    spec = make_workflow(
        make_step("a"),
        make_step("b", ["a"]),
        make_step("c", ["b"], back_to="a", at_most=2),
        make_step("d", ["c"], back_to="b", at_most=2),
        make_step("side", ["a"]),
    )
    assert WorkflowGraph(spec).waits["side"] == ("a", "c", "d")


@pytest.mark.parametrize(
    ("steps", "complaint"),
    [
        pytest.param([make_step("a", ["a"])], "in a circle: 'a'", id="waits for itself"),
        pytest.param([make_step("a", ["x"])], "'x', which is not a step", id="unknown"),
        pytest.param(
            [make_step("a"), make_step("b", back_to="a")], "does not come before", id="back_to"
        ),
        pytest.param([make_step("a", back_to="x")], "does not come before", id="unknown back_to"),
        pytest.param(
            [
                make_step("a"),
                make_step("b", ["a"]),
                make_step("c", ["b"], back_to="a"),
                make_step("d", ["b"]),
                make_step("e", ["d"], back_to="b"),
            ],
            "loops overlap",
            id="loops that cross",
        ),
    ],
)
def test_a_workflow_that_has_no_meaning_is_refused(steps: list[object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        WorkflowGraph(make_workflow(*steps))  # type: ignore[arg-type]


# --- resuming -----------------------------------------------------------------------------------


def test_what_is_remembered_whole_is_passed_over() -> None:
    progress = WorkflowProgress(
        JOB,
        LOOP,
        [
            StepResult(StepRef("review", 1), repeat=True),
            StepResult(StepRef("plan")),
            StepResult(StepRef("code", 1)),
            StepResult(StepRef("code", 2)),
        ],
    )
    assert progress.begin() == prepare("review", visit=2)


def test_a_fan_out_remembered_in_part_is_prepared_again_and_runs_the_rest() -> None:
    spec = make_workflow(make_step("work", fan_out=True))
    done = [StepResult(StepRef("work", 1, item), 4) for item in (1, 3)]
    progress = WorkflowProgress(JOB, spec, done)
    assert progress.begin() == prepare("work")
    rest = progress.prepared("work", 1, 4)
    assert rest == [RunStep(JOB, StepRef("work", 1, item)) for item in (0, 2)]
    progress.finished(StepResult(StepRef("work", 1, 0), 4))
    assert progress.finished(StepResult(StepRef("work", 1, 2), 4)) == []
    assert progress.is_finished


def test_a_fan_out_over_nothing_is_prepared_again_and_its_successors_are_remembered() -> None:
    spec = make_workflow(
        make_step("none", fan_out=True), make_step("b", ["none"]), make_step("c", ["b"])
    )
    progress = WorkflowProgress(JOB, spec, [StepResult(StepRef("b"))])
    assert progress.begin() == prepare("none")
    assert progress.prepared("none", 1, 0) == prepare("c")


def test_another_width_than_before_is_a_conflict_that_changes_nothing() -> None:
    spec = make_workflow(make_step("work", fan_out=True))
    progress = walk(spec, StepResult(StepRef("work", 1, 2), 3))
    with pytest.raises(ResumeConflict, match="made 2 items, but 3"):
        progress.prepared("work", 1, 2)
    assert progress.prepared("work", 1, 3) is not None


def test_results_that_are_never_reached_are_ignored() -> None:
    progress = WorkflowProgress(
        JOB, LOOP, [StepResult(StepRef("gone")), StepResult(StepRef("end"))]
    )
    assert progress.begin() == prepare("plan")


# --- stale and impossible -----------------------------------------------------------------------


def test_events_of_earlier_visits_and_known_items_are_stale() -> None:
    progress = walk(LOOP)
    do(progress, "plan")
    do(progress, "code")
    do(progress, "review", repeat=True)
    progress.prepared("code", 2, 1)
    assert progress.prepared("code", 2, 5) is None
    assert progress.prepared("code", 1, 1) is None
    assert progress.finished(StepResult(StepRef("code", 1))) is None
    assert progress.finished(StepResult(StepRef("plan", 1))) is None
    assert not progress.check_running(StepRef("code", 1))
    assert progress.check_running(StepRef("code", 2))


def test_a_step_may_fail_before_it_is_prepared() -> None:
    assert walk(LOOP).check_running(StepRef("plan"))


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(StepResult(StepRef("work", 1, 2), 2), id="an item beyond the last"),
        pytest.param(StepResult(StepRef("work", 1, -1), 2), id="an item before the first"),
        pytest.param(StepResult(StepRef("work", 1, 0), 3), id="another width"),
        pytest.param(StepResult(StepRef("work", 2, 0), 2), id="a later visit"),
        pytest.param(StepResult(StepRef("work", 0, 0), 2), id="visit zero"),
        pytest.param(StepResult(StepRef("join", 1, 0), 1), id="a step that waits"),
    ],
)
def test_an_item_that_does_not_run_cannot_finish(result: StepResult) -> None:
    progress = walk(make_workflow(make_step("work", fan_out=True), make_step("join", ["work"])))
    progress.prepared("work", 1, 2)
    with pytest.raises(InvariantViolation):
        progress.finished(result)


# --- what is certain to come next ---------------------------------------------------------------


def certain(progress: WorkflowProgress, step: str) -> list[str]:
    return [spec.name for spec in progress.certain_followers(step)]


def test_what_waits_for_nothing_else_follows_for_certain() -> None:
    progress = walk(
        make_workflow(
            make_step("a"), make_step("b"), make_step("c", ["a"]), make_step("join", ["a", "b"])
        )
    )
    progress.prepared("a", 1, 1)
    progress.prepared("b", 1, 1)
    assert certain(progress, "a") == ["c"]
    assert certain(progress, "b") == []
    progress.finished(StepResult(StepRef("a", 1), 1))
    assert certain(progress, "b") == ["join"]


def test_after_a_step_that_may_go_back_or_has_other_items_nothing_is_certain() -> None:
    progress = walk(LOOP)
    progress.prepared("plan", 1, 2)
    assert certain(progress, "plan") == []
    progress.finished(StepResult(StepRef("plan", 1, 0), 2))
    assert certain(progress, "plan") == ["code"]
    progress.finished(StepResult(StepRef("plan", 1, 1), 2))
    progress.prepared("code", 1, 1)
    assert certain(progress, "code") == ["review"], "docs waits for the end of the loop"
    progress.finished(StepResult(StepRef("code", 1), 1))
    progress.prepared("review", 1, 1)
    assert certain(progress, "review") == []


@given(data=st.data())
def test_what_is_certain_is_what_becomes_ready(data: st.DataObject) -> None:
    names = [f"s{n}" for n in range(6)]
    steps = [
        make_step(name, data.draw(st.lists(st.sampled_from(names[:n]), unique=True, max_size=3)))
        if n
        else make_step(name)
        for n, name in enumerate(names)
    ]
    progress = walk(make_workflow(*steps))
    ready = [step.name for step in steps if not step.after]
    for step in ready:
        progress.prepared(step, 1, 1)
    while ready:
        step = ready.pop(data.draw(st.integers(0, len(ready) - 1)))
        said = certain(progress, step)
        effects = progress.finished(StepResult(StepRef(step, 1), 1))
        assert effects is not None
        follow = [effect.step for effect in effects if isinstance(effect, PrepareStep)]
        assert said == follow
        for follower in follow:
            progress.prepared(follower, 1, 1)
        ready += follow
    assert progress.is_finished
