"""What every `Filter`, `Scorer`, `Picker`, `RoutingPolicy` and `ModelChoice` must keep."""

from __future__ import annotations

import inspect
from types import ModuleType

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from maestroctl.domain.policy import PolicySpec
from maestroctl.scheduler.coordinator_state import StageState
from maestroctl.scheduler.registry import MODEL_CHOICES, ROUTINGS
from maestroctl.scheduler.routing import filters, pipeline, scorers
from maestroctl.scheduler.routing.fleet_state import FleetState
from maestroctl.scheduler.routing.pipeline import MAX_CANDIDATES, Filter, Picker, Scorer
from maestroctl.testing.coordinator_builders import fingerprint
from tests.conformance.policies.fleets import all_places, fleets, stages

POLICY = PolicySpec()


def classes(module: ModuleType, method: str) -> list[type]:
    """Every concrete class of the module that has the method."""
    found = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and hasattr(cls, method)
    ]
    return [cls for cls in found if not getattr(cls, "_is_protocol", False)]


FILTERS = classes(filters, "rejects")
SCORERS = classes(scorers, "score")
PICKERS = classes(pipeline, "pick")


def test_there_is_something_to_check() -> None:
    assert FILTERS
    assert SCORERS
    assert PICKERS


@pytest.mark.parametrize("cls", FILTERS)
@given(stage=stages(), fleet=fleets())
@settings(deadline=None)
def test_a_filter_gives_a_reason_or_none_and_changes_nothing(
    cls: type[Filter], stage: StageState, fleet: FleetState
) -> None:
    before = fingerprint((stage, fleet))
    for place in all_places(fleet):
        reason = cls().rejects(stage, place, fleet)
        assert reason is None or (reason and place.name not in reason)
        assert cls().rejects(stage, place, fleet) == reason
    assert fingerprint((stage, fleet)) == before


@pytest.mark.parametrize("cls", SCORERS)
@given(stage=stages(), fleet=fleets())
@settings(deadline=None)
def test_a_score_lies_between_0_and_1(
    cls: type[Scorer], stage: StageState, fleet: FleetState
) -> None:
    before = fingerprint((stage, fleet))
    for place in all_places(fleet):
        assert 0.0 <= cls().score(stage, place) <= 1.0
    assert fingerprint((stage, fleet)) == before


@pytest.mark.parametrize("cls", PICKERS)
@given(fleet=fleets(), data=st.data())
@settings(deadline=None)
def test_a_picker_picks_one_whatever_order_it_is_shown_them_in(
    cls: type[Picker], fleet: FleetState, data: st.DataObject
) -> None:
    scores = st.sampled_from([0.0, 0.5, 1.0])
    scored = [(data.draw(scores), place) for place in all_places(fleet)]
    assume(scored)
    picked = cls().pick(scored)
    assert any(place is picked for _, place in scored)
    assert cls().pick(data.draw(st.permutations(scored))) is picked


@pytest.mark.parametrize("name", ROUTINGS)
@given(stage=stages(), fleet=fleets())
@settings(deadline=None)
def test_a_route_leads_to_an_open_place_of_the_stages_models(
    name: str, stage: StageState, fleet: FleetState
) -> None:
    before = fingerprint((stage, fleet))
    decision = ROUTINGS[name](POLICY).route(stage, fleet, 2.0)
    assert fingerprint((stage, fleet)) == before
    assert decision.reason
    assert len(decision.candidates) <= MAX_CANDIDATES
    place = decision.place
    if place is not None:
        assert place.is_open
        assert place.model in stage.models
        assert (place.node.name, place.model) not in stage.excluded
        if place.node.name == stage.avoid:
            others = fleet.usable(stage.models, stage.excluded)
            assert all(other.node.name == stage.avoid for other in others)


@pytest.mark.parametrize("name", ROUTINGS)
@given(stage=stages(), fleet=fleets())
@settings(deadline=None)
def test_a_route_does_not_depend_on_the_order_in_which_nodes_connected(
    name: str, stage: StageState, fleet: FleetState
) -> None:
    decision = ROUTINGS[name](POLICY).route(stage, fleet, 2.0)
    for index in (fleet._open, fleet._places):
        for model, places in index.items():
            index[model] = dict(reversed(places.items()))
    again = ROUTINGS[name](POLICY).route(stage, fleet, 2.0)
    assert again == decision


@pytest.mark.parametrize("name", ROUTINGS)
@given(stage=stages())
def test_without_a_fleet_there_is_no_route(name: str, stage: StageState) -> None:
    assert ROUTINGS[name](POLICY).route(stage, FleetState(1), 2.0).place is None


@pytest.mark.parametrize("name", MODEL_CHOICES)
@given(stage=stages(), fleet=fleets())
@settings(deadline=None)
def test_a_model_choice_names_some_of_the_candidates(
    name: str, stage: StageState, fleet: FleetState
) -> None:
    choice = MODEL_CHOICES[name](POLICY)
    before = fingerprint((stage, fleet))
    decision = choice.choose(stage, fleet, 2.0)
    assert fingerprint((stage, fleet)) == before
    assert decision.models
    assert decision.reason
    assert len(set(decision.models)) == len(decision.models)
    assert set(decision.models) <= set(stage.stage.candidates)
    usable = [c for c in stage.stage.candidates if next(fleet.usable((c,), stage.excluded), None)]
    if usable:
        assert set(decision.models) & set(usable), "a model that nobody can serve was chosen"
    stage.models = decision.models
    choice.on_models_set(stage)
    choice.on_stage_progressed(stage)
    choice.on_stage_over(stage)
    choice.on_job_gone(stage.stage.job_id)
