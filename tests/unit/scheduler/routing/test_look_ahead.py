"""Advice by what the workflow declares next, else by what followed the same state before."""

from types import SimpleNamespace

import pytest

from maestroctl.domain.ids import JobId
from maestroctl.domain.workflow import StepSpec, WorkflowSpec
from maestroctl.scheduler.routing.look_ahead import LEAST_CHANCE, WorkflowLookAhead
from maestroctl.scheduler.workflow_progress import WorkflowProgress

PROFILE = SimpleNamespace(
    decode_s=0.1, iteration=SimpleNamespace(c0_s=0.0, c1_s=0.1, c2_s=0.0, cp_s=0.0)
)


def make_place(node: str, model: str, *, readiness: float = 0.0, ready_in_s: float = 2.0):
    return SimpleNamespace(
        node=SimpleNamespace(name=node),
        model=model,
        profile=PROFILE,
        readiness=readiness,
        ready_in_s=ready_in_s if readiness < 1 else 0.0,
        disruption_s=0.0,
        is_usable=True,
    )


class Fleet:
    def __init__(self, *places) -> None:
        self._places = places

    def places(self, model):
        return {p.node.name: p for p in self._places if p.model == model}


@pytest.fixture(autouse=True)
def no_prefill(monkeypatch):
    name = "maestroctl.scheduler.routing.look_ahead.estimate_prefill_s"
    monkeypatch.setattr(name, lambda _profile, _tokens: 0.0)


def make_stage(job: str, step: str, place, tokens: float = 100.0, progress=None):
    stage = SimpleNamespace(
        job_id=job,
        workflow="w",
        step=step,
        place=step,
        role="r",
        invocation_index=0,
        external=progress is None,
        prompt_tokens=SimpleNamespace(full=10),
    )
    return SimpleNamespace(
        stage=stage,
        place=place,
        prediction=SimpleNamespace(output_q50=tokens),
        job=SimpleNamespace(progress=progress),
    )


WARM_A = make_place("n1", "a", readiness=1.0)
COLD_B = make_place("n1", "b")


def play(look_ahead: WorkflowLookAhead, fleet: Fleet, job: str, at_s: float, gap_s: float) -> None:
    """A job of two steps: a for 10 s, then b."""
    look_ahead.advise(make_stage(job, "plan", WARM_A), fleet, at_s)
    look_ahead.advise(make_stage(job, "write", COLD_B), fleet, at_s + 10.0 + gap_s)


def test_the_model_that_followed_before_is_advised_for_the_time_it_came():
    look_ahead, fleet = WorkflowLookAhead(), Fleet(WARM_A, COLD_B)
    assert look_ahead.advise(make_stage("new", "plan", WARM_A), fleet, 0.0) == []
    look_ahead = WorkflowLookAhead()
    for number in range(3):
        play(look_ahead, fleet, f"j{number}", 100.0 * number, gap_s=3.0)
    (advice,) = look_ahead.advise(make_stage("new", "plan", WARM_A), fleet, 1000.0)
    assert (advice.node, advice.model, advice.probability) == ("n1", "b", 1.0)
    assert advice.expected_at_s == pytest.approx(1013.0)


def test_nothing_is_advised_for_a_model_that_is_up_somewhere():
    fleet = Fleet(WARM_A, COLD_B, make_place("n2", "b", readiness=0.5))
    look_ahead = WorkflowLookAhead()
    play(look_ahead, fleet, "j", 0.0, gap_s=0.0)
    assert look_ahead.advise(make_stage("new", "plan", WARM_A), fleet, 50.0) == []


def test_jobs_that_end_there_count_against_it():
    look_ahead, fleet = WorkflowLookAhead(), Fleet(WARM_A, COLD_B)
    play(look_ahead, fleet, "j", 0.0, gap_s=0.0)
    for number in range(round(1 / LEAST_CHANCE) + 1):
        look_ahead.advise(make_stage(f"short{number}", "plan", WARM_A), fleet, 50.0)
    assert look_ahead.advise(make_stage("new", "plan", WARM_A), fleet, 90.0) == []


def test_the_node_that_has_it_ready_soonest_is_chosen_and_the_one_in_use_on_a_tie():
    near, far = make_place("n1", "b", ready_in_s=5.0), make_place("n2", "b", ready_in_s=2.0)
    look_ahead = WorkflowLookAhead()
    play(look_ahead, Fleet(WARM_A, near, far), "j", 0.0, gap_s=0.0)
    (advice,) = look_ahead.advise(make_stage("x", "plan", WARM_A), Fleet(WARM_A, near, far), 50.0)
    assert advice.node == "n2"
    far.ready_in_s = 5.0
    (advice,) = look_ahead.advise(make_stage("y", "plan", WARM_A), Fleet(WARM_A, near, far), 60.0)
    assert advice.node == "n1"


def declared(*models: str, **first) -> WorkflowProgress:
    """A job that is at `plan`; `write` comes next, on one of the models."""
    plan = StepSpec("plan", "", **first)
    write = StepSpec("write", "", models=models, after=("plan",))
    progress = WorkflowProgress(JobId("j"), WorkflowSpec("w", {"plan": plan, "write": write}))
    progress.begin()
    progress.prepared("plan", 1, 1)
    return progress


def test_a_declared_model_needs_no_experience():
    stage = make_stage("j", "plan", WARM_A, progress=declared("b"))
    (advice,) = WorkflowLookAhead().advise(stage, Fleet(WARM_A, COLD_B), 0.0)
    assert (advice.model, advice.probability) == ("b", 1.0)
    assert advice.expected_at_s == pytest.approx(10.0)


def test_what_is_declared_counts_more_than_what_was_seen():
    look_ahead, cold_c = WorkflowLookAhead(), make_place("n1", "c")
    fleet = Fleet(WARM_A, COLD_B, cold_c)
    play(look_ahead, fleet, "before", 0.0, gap_s=3.0)
    stage = make_stage("j", "plan", WARM_A, progress=declared("c"))
    (advice,) = look_ahead.advise(stage, fleet, 100.0)
    assert advice.model == "c"
    assert advice.expected_at_s == pytest.approx(113.0), "the usual gap counts all the same"


@pytest.mark.parametrize(
    "progress",
    [
        declared("b", "c"),
        declared("alias"),
        declared(),
        declared("b", tools=("search",)),
    ],
    ids=["a choice", "no model of the fleet", "auto", "tools may be called first"],
)
def test_where_the_file_leaves_it_open_it_is_learned(progress):
    look_ahead, fleet = WorkflowLookAhead(), Fleet(WARM_A, COLD_B)
    stage = make_stage("j", "plan", WARM_A, progress=progress)
    assert look_ahead.advise(stage, fleet, 0.0) == []
    look_ahead = WorkflowLookAhead()
    play(look_ahead, fleet, "before", 0.0, gap_s=0.0)
    (advice,) = look_ahead.advise(stage, fleet, 50.0)
    assert advice.model == "b"
