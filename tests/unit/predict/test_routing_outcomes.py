"""Confidences that speak of a question come from a router that has not seen it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from maestroctl.errors import ConfigError
from maestroctl.predict.routing_outcomes import load_answered, out_of_fold_confidences
from maestroctl.predict.routing_tables import RoutingRow


def make_rows(number: int, seed: int = 1) -> list[RoutingRow]:
    """`strong` is right where the question says easy; `weak` by chance."""
    rng = random.Random(seed)
    rows = []
    for k in range(number):
        easy = rng.random() < 0.5
        text = f"{'easy sum of small numbers' if easy else 'hard proof about groups'} number {k}"
        rows.append(RoutingRow("d", text, "strong", float(easy), 10 + k))
        rows.append(RoutingRow("d", text, "weak", float(rng.random() < 0.3), 20))
    return rows


def test_what_can_be_learned_is_learned_without_seeing_the_question() -> None:
    rows = make_rows(150)
    said = out_of_fold_confidences(rows, ["strong"])
    assert len(said) == 150
    right = [said[r.item_key, "strong"] for r in rows if r.model == "strong" and r.correct]
    wrong = [said[r.item_key, "strong"] for r in rows if r.model == "strong" and not r.correct]
    assert min(right) > max(wrong)


def test_outcomes_that_are_chance_are_not_known_in_advance() -> None:
    rows = make_rows(150)
    said = out_of_fold_confidences(rows, ["weak"])
    weak = [row for row in rows if row.model == "weak"]
    right = [said[r.item_key, "weak"] for r in weak if r.correct]
    wrong = [said[r.item_key, "weak"] for r in weak if not r.correct]
    higher = sum(a > b for a in right for b in wrong) / (len(right) * len(wrong))
    assert 0.25 < higher < 0.7, "a leak of the label would show here"


def test_a_table_gives_questions_that_every_model_answered(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = make_rows(40)[:-1]  # the last question has one answer only
    columns = {
        "dataset": [r.dataset for r in rows],
        "question_text": [r.question for r in rows],
        "model": [r.model for r in rows],
        "correct": [int(r.correct) for r in rows],
        "output_tokens": [r.output_tokens for r in rows],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    queries = load_answered(tmp_path, "d", ["strong", "weak"])
    assert len(queries) == 39
    assert set(queries[0].confidence) == {"strong", "weak"}
    assert queries[3].output_tokens == {"strong": 13, "weak": 20}
    with pytest.raises(ConfigError, match="other"):
        load_answered(tmp_path, "d", ["other"])
