"""The generator of answered questions: like what it was fitted to, and the same for a seed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest

from maestroctl.errors import ConfigError
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.sim.outcomes import load_parameters, make_answered
from maestroctl.sim.outcomes_fit import fit_table

TABLES = sorted(load_parameters()["tables"])
NUMBER = 3000


def area_under_roc(queries: Sequence[AnsweredQuery], model: str) -> float:
    right = [q.confidence[model] for q in queries if q.correct[model]]
    wrong = [q.confidence[model] for q in queries if not q.correct[model]][: 10**6 // len(right)]
    return fmean((r > w) + (r == w) / 2 for r in right for w in wrong)


@pytest.mark.parametrize("table", TABLES)
def test_accuracy_and_lengths_are_those_of_the_table(table: str) -> None:
    made = make_answered(table, NUMBER)
    for model, fitted in load_parameters()["tables"][table]["models"].items():
        assert fmean(q.correct[model] for q in made) == pytest.approx(fitted["accuracy"], abs=0.04)
        lengths = sorted(q.output_tokens[model] for q in made)
        middle = fitted["output_tokens"][len(fitted["output_tokens"]) // 2]
        assert lengths[NUMBER // 2] == pytest.approx(middle, rel=0.1)


@pytest.mark.parametrize("table", TABLES)
def test_the_router_is_better_than_chance_and_far_from_perfect(table: str) -> None:
    made = make_answered(table, NUMBER)
    for model in load_parameters()["tables"][table]["models"]:
        assert 0.58 < area_under_roc(made, model) < 0.75


@pytest.mark.parametrize("table", TABLES)
def test_wrong_answers_are_longer(table: str) -> None:
    made = make_answered(table, NUMBER)
    for model in load_parameters()["tables"][table]["models"]:
        right = fmean(q.output_tokens[model] for q in made if q.correct[model])
        wrong = fmean(q.output_tokens[model] for q in made if not q.correct[model])
        assert wrong > right


def test_fitting_what_was_generated_gives_the_parameters_back() -> None:
    fitted = load_parameters()["tables"][TABLES[0]]
    models = list(fitted["models"])
    again = fit_table(make_answered(TABLES[0], NUMBER, seed=7), models)
    for key in (
        *("outcome_share", "length_difficulty", "length_share"),
        *("confidence_difficulty", "confidence_share"),
    ):
        assert again[key] == pytest.approx(fitted[key], abs=0.08), key


def test_a_seed_gives_the_same_questions_whatever_their_number() -> None:
    assert make_answered(TABLES[0], 20)[:5] == make_answered(TABLES[0], 5)
    assert make_answered(TABLES[0], 5) != make_answered(TABLES[0], 5, seed=1)


def test_an_unknown_table_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=TABLES[0]):
        make_answered("nothing", 1)
