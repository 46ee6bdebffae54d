"""One more model in an artifact: fitted on its outcomes alone, and nothing else moves."""

from __future__ import annotations

import io
import json
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maestroctl.errors import ConfigError
from maestroctl.predict.artifact import load_artifact, save_artifact
from maestroctl.predict.embedding import WindowEmbedder
from maestroctl.predict.encoders.sketch import fit_sketch
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.model_addition import add_model, run_addition
from maestroctl.predict.routing_tables import RoutingRow, load_outcomes
from maestroctl.predict.semantic_router import fit_router

TEXTS = [f"add {k} and {k + 1}" if k % 2 else f"prove lemma {k} on manifolds" for k in range(240)]


def answers(model: str, *, good_at: str, seed: int = 0) -> list[RoutingRow]:
    """Right nine times of ten where the question says what the model is good at."""
    rng = random.Random(seed)
    return [
        RoutingRow("d", text, model, float(rng.random() < (0.9 if good_at in text else 0.2)))
        for text in TEXTS
    ]


def chance(model: str, count: int = 240) -> list[RoutingRow]:
    """Right by chance, whatever is asked."""
    rng = random.Random(5)
    return [RoutingRow("d", text, model, float(rng.random() < 0.6)) for text in TEXTS[:count]]


@pytest.fixture(scope="module")
def base(model: PredictorModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact whose router knows two models and has an encoder of its own."""
    rows = answers("adder", good_at="add") + answers("prover", good_at="prove", seed=1)
    router = fit_router(
        WindowEmbedder(fit_sketch(TEXTS, 8)),
        [row.question for row in rows],
        [row.model for row in rows],
        [row.correct for row in rows],
        [k % 4 for k in range(240)] * 2,
    )
    path = tmp_path_factory.mktemp("base") / "base.mpred"
    save_artifact(replace(model, router=router), path)
    return path


def write_lines(path: Path, rows: list[RoutingRow]) -> Path:
    lines = [{"question_text": row.question, "correct": int(row.correct)} for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def arrays(blob: bytes) -> dict[str, Any]:
    with np.load(io.BytesIO(blob), allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def test_nothing_but_the_new_head_changes_by_one_bit(base: Path, tmp_path: Path) -> None:
    outcomes = write_lines(tmp_path / "o.jsonl", answers("new", good_at="add", seed=2))
    out = tmp_path / "new.mpred"
    before_bytes = base.read_bytes()
    done = run_addition(load_artifact(base), "new", outcomes, out)
    before, after = entries(base), entries(out)
    assert set(before) == set(after)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"manifest.json", "router.json", "router.npz"}
    names = {model: k for k, model in enumerate(json.loads(after["router.json"])["models"])}
    assert set(names) == {"adder", "new", "prover"}
    old, new = arrays(before["router.npz"]), arrays(after["router.npz"])
    assert old["difficulty"].tobytes() == new["difficulty"].tobytes()
    for place, model in enumerate(json.loads(before["router.json"])["models"]):
        for part in ("weights", "bias"):
            assert old[part][place].tobytes() == new[part][names[model]].tobytes(), (model, part)
    assert base.read_bytes() == before_bytes
    again = load_artifact(out, digest=done["digest"])
    assert again.about["added_to"] == load_artifact(base).about["digest"]
    assert again.about["added_models"]["new"]["outcomes"] == 240


def test_the_artifact_that_ships_is_read_and_written_to_the_bit(tmp_path: Path) -> None:
    from maestroctl.predict.shipped import SHIPPED_PATH, load_shipped

    outcomes = write_lines(tmp_path / "o.jsonl", chance("new"))
    run_addition(load_shipped(), "new", outcomes, tmp_path / "a.mpred")
    before, after = entries(SHIPPED_PATH), entries(tmp_path / "a.mpred")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"manifest.json", "router.json", "router.npz"}


def test_models_can_be_added_one_after_another_in_place(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.mpred"
    one = write_lines(tmp_path / "1.jsonl", answers("one", good_at="add"))
    two = write_lines(tmp_path / "2.jsonl", answers("two", good_at="prove"))
    run_addition(load_artifact(base), "one", one, path)
    run_addition(load_artifact(path), "two", two, path)
    model = load_artifact(path)
    assert model.router is not None
    assert set(model.router.heads) == {"adder", "one", "prover", "two"}
    assert set(model.about["added_models"]) == {"one", "two"}
    said = model.router.confidence("add 700 and 3", ["one", "two"])
    assert said["one"] > 0.6 > 0.4 > said["two"]


def test_what_can_be_known_beats_the_base_rate_on_held_out_questions(base: Path) -> None:
    _, held_out = add_model(load_artifact(base), "new", answers("new", good_at="add", seed=3))
    assert held_out["brier"] < 0.75 * held_out["brier_base_rate"]
    assert held_out["log_loss"] < 0.85 * held_out["log_loss_base_rate"]
    assert held_out["auc"] > 0.75


def test_chance_is_not_reported_as_knowledge(base: Path) -> None:
    _, held_out = add_model(load_artifact(base), "new", chance("new"))
    assert held_out["log_loss"] > 0.97 * held_out["log_loss_base_rate"], "a leak would show here"
    assert held_out["log_loss"] < 1.05 * held_out["log_loss_base_rate"]


def test_answers_to_one_question_are_judged_together(base: Path) -> None:
    rng = random.Random(9)
    by_question = {text: float(rng.random() < 0.5) for text in TEXTS}
    rows = [
        RoutingRow("d", text, "new", right) for text, right in by_question.items() for _ in "1234"
    ]
    _, held_out = add_model(load_artifact(base), "new", rows)
    assert held_out["log_loss"] > 0.95 * held_out["log_loss_base_rate"]


def test_a_known_model_is_fitted_anew_only_when_asked(base: Path, tmp_path: Path) -> None:
    outcomes = write_lines(tmp_path / "o.jsonl", answers("adder", good_at="prove"))
    with pytest.raises(ConfigError, match="knows 'adder' already"):
        run_addition(load_artifact(base), "adder", outcomes, tmp_path / "a.mpred")
    run_addition(load_artifact(base), "adder", outcomes, tmp_path / "a.mpred", again=True)
    router = load_artifact(tmp_path / "a.mpred").router
    assert router is not None
    assert router.confidence("add 1 and 9", ["adder"])["adder"] < 0.4


def test_an_artifact_without_a_router_is_refused(model: PredictorModel, tmp_path: Path) -> None:
    outcomes = write_lines(tmp_path / "o.jsonl", chance("new"))
    with pytest.raises(ConfigError, match="no confidence router"):
        run_addition(model, "new", outcomes, tmp_path / "a.mpred")


def test_few_questions_are_refused_however_often_they_were_asked(
    base: Path, tmp_path: Path
) -> None:
    outcomes = write_lines(tmp_path / "o.jsonl", chance("new", 19) * 5)
    with pytest.raises(ConfigError, match="19 questions are too few"):
        run_addition(load_artifact(base), "new", outcomes, tmp_path / "a.mpred")
    assert not (tmp_path / "a.mpred").exists()


LINE = '{"question_text": "a", "correct": 1}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no outcome of 'new'"),
        ("no json\n", "o.jsonl:1"),
        (LINE + "[1]\n", "o.jsonl:2"),
        (LINE + '{"correct": 1}\n', "question_text"),
        (LINE + '{"question_text": 7, "correct": 1}\n', "not a text"),
        (LINE + '{"question_text": "a", "correct": "yes"}\n', "o.jsonl:2"),
        ('{"question_text": "a", "correct": 0.5}\n', "0.5, but must be 0 or 1"),
        ('{"question_text": "a", "correct": NaN}\n', "nan, but must be 0 or 1"),
        ('{"question_text": "a", "model": "other", "correct": 1}\n', "no outcome of 'new'"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_wrong_file_is_answered_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "o.jsonl"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        load_outcomes(path, "new")
    assert said in str(caught.value)


def test_lines_may_be_blank_and_of_other_models_too(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    path.write_text(
        LINE
        + "\n"
        + '{"question_text": "b\u2028c", "model": "new", "correct": false}\n'
        + '{"question_text": "d", "model": "other", "correct": 1}\n'
    )
    rows = load_outcomes(path, "new")
    assert [(row.question, row.correct) for row in rows] == [("a", 1.0), ("b\u2028c", 0.0)]


def test_a_table_is_read_as_training_reads_it(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    columns = {"question_text": ["a", "b"], "model": ["new", "other"], "correct": [1, 0]}
    parquet.write_table(pyarrow.table(columns), path)
    assert [row.question for row in load_outcomes(path, "new")] == ["a"]
    with pytest.raises(ConfigError) as caught:
        load_outcomes(path, "nobody")
    assert "new, other" in str(caught.value.hint)
    path.write_bytes(b"PAR1 damaged")
    with pytest.raises(ConfigError, match="not a correctness table"):
        load_outcomes(path, "new")
