"""Model choices inside the core: assignments, what is in flight, what records say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.domain.prediction import Prediction
from maestroctl.domain.records import DecisionRecord
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.effects import CoordinatorEffect, DispatchStage, RecordDecision
from maestroctl.scheduler.events import (
    JobCancelled,
    NodeLost,
    PredictionArrived,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
)
from maestroctl.scheduler.routing.assigned_choice import AssignedChoice
from maestroctl.testing.coordinator_builders import (
    arrival,
    limited,
    make_engine,
    make_fleet,
    make_profile,
    make_snapshot,
    make_stage,
    make_step,
    make_workflow,
    node_says,
    submission,
)

SMALL, LARGE = ModelName("small"), ModelName("large")
BOTH = (LARGE, SMALL)


def make_core(choice: str, slots: int = 4, **policy: float | str) -> CoordinatorCore:
    """Two nodes, one model each; `large` is twice as slow."""
    fleet = make_fleet(
        BOTH,
        {"n1": ["small"], "n2": ["large"]},
        limited(model_choice=choice, **policy),
    )
    core = CoordinatorCore(fleet, 1)
    connect(core, "small", "n1", slots)
    connect(core, "large", "n2", slots, factor=2.0)
    return core


def connect(
    core: CoordinatorCore, model: str, node: str, slots: int = 4, factor: float = 1.0
) -> None:
    profile = make_profile(model)
    cost = profile.iteration
    profile = replace(profile, iteration=replace(cost, c0_s=cost.c0_s * factor))
    engine = make_engine(model, slots, node=node)
    core.handle(node_says(make_snapshot(node, [engine], [profile])), 0.0)


def guess(small: float = 0.4, large: float = 0.8, tokens: float = 100.0) -> Prediction:
    return Prediction(
        50.0,
        100.0,
        total_tokens=dict.fromkeys(BOTH, tokens),
        confidence={SMALL: small, LARGE: large},
    )


def chosen(effects: Sequence[CoordinatorEffect]) -> list[DecisionRecord]:
    records = [e.record for e in effects if isinstance(e, RecordDecision)]
    return [record for record in records if record.kind == "choose_model"]


def sent(effects: Sequence[CoordinatorEffect]) -> list[str]:
    return [e.model for e in effects if isinstance(e, DispatchStage)]


def monitor_of(core: CoordinatorCore) -> AssignedChoice:
    choice = core._model_choice
    assert isinstance(choice, AssignedChoice)
    return choice


def finish(core: CoordinatorCore, stage_id: str, tokens: int, at_s: float) -> None:
    view = next(v for v in core.in_flight() if v.stage_id == stage_id)
    core.handle(
        StageEnded(view.stage_id, view.attempt, Outcome.FINISHED, True, Usage(50, tokens)), at_s
    )
    core.validate()


@pytest.mark.parametrize("form", ["maestroctl", "chimera", "chimera_full"])
def test_the_record_says_what_was_weighed(form: str) -> None:
    core = make_core(form, latency_slack=10.0)
    (record,) = chosen(core.handle(arrival(make_stage(models=BOTH), guess()), 1.0))
    assert record.choice == "large"
    assert [c.name for c in record.candidates] == ["large", "small"]
    terms = record.candidates[0].terms
    assert terms["confidence"] == 0.8
    assert terms["job_tokens"] == 100.0
    assert terms["in_flight_tokens"] == 0.0
    latency = terms["price_s" if form == "maestroctl" else "latency_s"]
    assert (latency == 0.0) == (form == "chimera"), "idle is free in the paper's form"


@pytest.mark.parametrize(
    ("slack", "margin", "model"),
    [(0.0, 0.05, "small"), (0.5, 0.05, "small"), (2.0, 0.05, "large"), (2.0, 0.5, "small")],
)
def test_slack_and_margin_decide_between_fast_and_good(
    slack: float, margin: float, model: str
) -> None:
    core = make_core("chimera_full", latency_slack=slack, confidence_margin=margin)
    assert sent(core.handle(arrival(make_stage(models=BOTH), guess()), 1.0)) == [model]


def test_load_sheds_itself_to_the_other_model() -> None:
    core = make_core("chimera", latency_slack=0.5)
    models = [
        sent(core.handle(arrival(make_stage(f"s{n}", models=BOTH), guess()), 1.0))[0]
        for n in range(4)
    ]
    assert models[0] == "large", "both are idle: the most confident"
    assert "small" in models[1:], "and then the other, while the first one works"


def test_a_job_keeps_its_model_while_it_can_be_started() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(arrival(make_stage("s1", "j", BOTH), guess()), 1.0)
    finish(core, "s1", 40, 2.0)
    effects = core.handle(arrival(make_stage("s2", "j", BOTH), guess(0.9, 0.1)), 3.0)
    assert sent(effects) == ["large"]
    assert "job's model" in chosen(effects)[0].reason


def test_another_candidate_set_of_the_job_is_another_choice() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(arrival(make_stage("s1", "j", BOTH), guess()), 1.0)
    effects = core.handle(arrival(make_stage("s2", "j", BOTH[::-1]), guess(0.9, 0.1)), 1.0)
    assert sent(effects) == ["small"]


def test_a_job_whose_model_is_lost_gets_another_one() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(arrival(make_stage("s1", "j", BOTH), guess()), 1.0)
    finish(core, "s1", 40, 2.0)
    core.handle(NodeLost(NodeName("n2"), "gone"), 3.0)
    effects = core.handle(arrival(make_stage("s2", "j", BOTH), guess()), 4.0)
    assert sent(effects) == ["small"]
    connect(core, "large", "n2", factor=2.0)
    effects = core.handle(arrival(make_stage("s3", "j", BOTH), guess()), 5.0)
    assert sent(effects) == ["small"], "it is the job's model now"


def test_a_stage_that_the_node_can_never_take_moves_its_tokens_along() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(arrival(make_stage("s1", models=BOTH), guess(tokens=700.0)), 1.0)
    monitor = monitor_of(core).monitor
    assert monitor.in_flight(LARGE) == 700
    view = core.in_flight()[0]
    effects = core.handle(StageRefused(view.stage_id, 1, "never", permanent=True), 2.0)
    assert sent(effects) == ["small"]
    assert (monitor.in_flight(LARGE), monitor.in_flight(SMALL)) == (0, 700)


def test_tokens_in_flight_fall_as_they_come_and_end_with_the_stage() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(arrival(make_stage("s1", models=BOTH), guess(tokens=700.0)), 1.0)
    monitor = monitor_of(core).monitor
    view = core.in_flight()[0]
    core.handle(StageStarted(view.stage_id, 1), 2.0)
    core.handle(StageProgressed(view.stage_id, 1, 200), 3.0)
    assert monitor.in_flight(LARGE) == 500
    core.handle(PredictionArrived(view.stage_id, guess(tokens=260.0)), 3.0)
    assert monitor.in_flight(LARGE) == 60
    finish(core, "s1", 210, 4.0)
    assert monitor.in_flight(LARGE) == 0


def test_a_stage_of_a_single_model_is_in_flight_too() -> None:
    core = make_core("maestroctl")
    core.handle(arrival(make_stage("s1", models=[SMALL]), guess(tokens=300.0)), 1.0)
    assert monitor_of(core).monitor.in_flight(SMALL) == 300


def test_a_stage_that_is_cancelled_while_it_waits_is_not_in_flight_any_more() -> None:
    core = make_core("maestroctl", slots=1, latency_slack=0.0)
    for n in range(3):
        core.handle(arrival(make_stage(f"s{n}", models=[SMALL]), guess()), 1.0)
    waiting = core.queued()[0]
    core.handle(StageCancelled(waiting.stage_id), 2.0)
    assert monitor_of(core).monitor.in_flight(SMALL) == 200


def test_the_end_of_a_declared_job_clears_what_it_did_not_say() -> None:
    core = make_core("maestroctl", latency_slack=10.0)
    core.handle(submission(make_workflow(make_step("a"), make_step("b", ["a"]))), 0.0)
    stage = make_stage("s1", "j", BOTH, external=False)
    core.handle(arrival(stage, guess(tokens=900.0)), 1.0)
    finish(core, "s1", 100, 2.0)
    monitor = monitor_of(core).monitor
    assert monitor.in_flight(LARGE) == 800, "step b is still to come"
    core.handle(JobCancelled(JobId("j")), 3.0)
    assert monitor.in_flight(LARGE) == 0
    assert not monitor_of(core)._assigned


def test_round_robin_takes_turns_and_keeps_a_job_where_it_is() -> None:
    core = make_core("round_robin")
    order = []
    for n in range(4):
        order += sent(core.handle(arrival(make_stage(f"a{n}", f"j{n}", BOTH), guess()), 1.0))
    assert order == ["large", "small", "large", "small"]
    again = []
    for n in range(4):
        again += sent(core.handle(arrival(make_stage(f"b{n}", f"j{n}", BOTH), guess()), 1.0))
    assert again == order[: len(again)]


def test_the_least_loaded_model_has_fewest_stages_per_slot() -> None:
    core = make_core("least_loaded", slots=8)
    core.handle(arrival(make_stage("x", models=[LARGE]), guess()), 1.0)
    picks = [
        sent(core.handle(arrival(make_stage(f"s{n}", models=BOTH), guess()), 1.0))[0]
        for n in range(3)
    ]
    assert picks == ["small", "large", "small"]


def test_the_limits_have_names_of_their_own() -> None:
    fast = make_core("fastest", latency_slack=5.0)
    good = make_core("most_confident", latency_slack=0.0)
    assert sent(fast.handle(arrival(make_stage(models=BOTH), guess(0.0, 1.0)), 1.0)) == ["small"]
    assert sent(good.handle(arrival(make_stage(models=BOTH), guess(0.6, 0.61)), 1.0)) == ["large"]


def test_with_one_model_it_reduces_to_shortest_total_job_first() -> None:
    orders = []
    for choice in ("first", "chimera"):
        fleet = make_fleet(policy=limited(ordering="stjf", model_choice=choice))
        core = CoordinatorCore(fleet, 1)
        core.handle(node_says(make_snapshot(engines=[make_engine(slots=1)])), 0.0)
        for n, tokens in enumerate([500, 900, 100, 700, 300]):
            total = {ModelName("m"): float(tokens)}
            core.handle(arrival(make_stage(f"s{n}"), Prediction(10, 20, total_tokens=total)), 0.0)
        orders.append([view.stage_id for view in core.queued()])
    assert orders[0] == orders[1] == ["s2", "s4", "s3", "s1"]


def test_the_order_counts_the_tokens_of_the_model_that_was_chosen() -> None:
    core = make_core("maestroctl", slots=1, ordering="stjf", latency_slack=0.0)
    for n, (small, large) in enumerate([(10, 10), (900, 100), (200, 800), (400, 50)]):
        prediction = Prediction(
            5.0, 9.0, total_tokens={SMALL: float(small), LARGE: float(large)},
            confidence={SMALL: 0.5, LARGE: 0.5},
        )  # fmt: skip
        stage = make_stage(f"s{n}", models=BOTH)
        core.handle(arrival(stage, prediction), 0.0)
    queued = [s for s in core._tables.queue if s.models == (SMALL,)]
    sizes = [s.prediction.total_tokens[SMALL] for s in queued]
    assert all(a <= b for a, b in pairwise(sizes))
    for stage in core._tables.queue:
        assert stage.key == pytest.approx(stage.prediction.total_tokens[stage.models[0]])


@pytest.mark.parametrize("choice", ["maestroctl", "chimera"])
def test_without_a_router_the_order_of_the_candidates_says_which_is_better(choice: str) -> None:
    core = make_core(choice, latency_slack=10.0)
    prediction = Prediction(50.0, 100.0, total_tokens=dict.fromkeys(BOTH, 100.0))
    assert sent(core.handle(arrival(make_stage(models=BOTH), prediction), 1.0)) == ["large"]
