"""Independent confidence heads."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from maestroctl.errors import ArtifactMissing
from maestroctl.predict import semantic_router
from maestroctl.predict.embedding import WindowEmbedder
from maestroctl.predict.encoders.sketch import fit_sketch
from maestroctl.predict.metrics import area_under_curve
from maestroctl.predict.modernbert import ModernBertRouter
from maestroctl.predict.semantic_router import SemanticRouter, fit_head, fit_router

EASY = [f"add {k} and {k + 1}" for k in range(80)]
HARD = [f"prove the lemma about manifold {k} in full detail" for k in range(80)]


def outcomes(texts: list[str], rng: random.Random, good_at: str) -> list[float]:
    return [float(rng.random() < (0.9 if good_at in text else 0.2)) for text in texts]


@pytest.fixture(scope="module")
def router() -> SemanticRouter:
    rng = random.Random(0)
    texts = EASY + HARD
    embedder = WindowEmbedder(fit_sketch(texts, 8))
    return fit_router(
        embedder,
        texts * 2,
        ["adder"] * 160 + ["prover"] * 160,
        outcomes(texts, rng, "add") + outcomes(texts, rng, "prove"),
        [k % 4 for k in range(160)] * 2,
    )


def test_each_model_is_confident_where_it_is_good(router: SemanticRouter) -> None:
    easy = router.confidence("add 500 and 7", ["adder", "prover"])
    hard = router.confidence("prove the lemma about manifold 900", ["adder", "prover"])
    assert easy["adder"] > 0.6 > 0.4 > easy["prover"]
    assert hard["prover"] > 0.6 > 0.4 > hard["adder"]


def test_confidences_are_calibrated_on_average(router: SemanticRouter) -> None:
    said = [router.confidence(text, ["adder"])["adder"] for text in EASY]
    assert abs(float(np.mean(said)) - 0.9) < 0.12


def test_unknown_models_are_left_out(router: SemanticRouter) -> None:
    assert router.confidence("add", ["nobody"]) == {}


def test_adding_a_model_changes_no_other_head(router: SemanticRouter) -> None:
    before = router.confidence("add 1 and 2", ["adder"])
    texts = EASY[:30] + HARD[:30]
    head = fit_head(
        np.stack([router.vector(text) for text in texts]),
        np.array([1.0] * 30 + [0.0] * 30),
        np.arange(60) % 3,
        router.ease_slope,
    )
    with_new = router.with_head("new", head)
    assert with_new.confidence("add 1 and 2", ["adder"]) == before
    assert with_new.confidence("add 1 and 2", ["new"])["new"] > 0.7
    assert router.confidence("add 1 and 2", ["new"]) == {}


@pytest.mark.parametrize("text", ["", "\ud800", "日本語", "x" * 100_000])
def test_any_question_gets_a_probability(router: SemanticRouter, text: str) -> None:
    assert all(0 < q < 1 for q in router.confidence(text, ["adder", "prover"]).values())


def test_few_outcomes_give_the_base_rate() -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    head = fit_head(vectors, np.array([1.0] * 7 + [0.0] * 3), np.arange(10) % 2)
    assert not head.weights.any()
    assert 1 / (1 + np.exp(-head.bias)) == pytest.approx(0.7)


def test_a_head_that_knows_nothing_says_the_base_rate() -> None:
    worse = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        vectors = rng.normal(size=(600, 12)).astype(np.float32)
        correct = (rng.random(600) < 0.7).astype(np.float64)
        head = fit_head(vectors[:300], correct[:300], np.arange(300) % 4, ease_slope=0.5)
        said = 1 / (1 + np.exp(-(vectors[300:] @ head.weights + head.bias)))
        base = correct[:300].mean()
        worse.append(float(((said - correct[300:]) ** 2 - (base - correct[300:]) ** 2).mean()))
    assert float(np.mean(worse)) < 0.001


def test_a_head_that_knows_much_is_hardly_drawn_to_the_base_rate() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(600, 3)).astype(np.float32)
    correct = (vectors[:, 0] + 0.3 * rng.normal(size=600) > 0).astype(np.float64)
    head = fit_head(vectors, correct, np.arange(600) % 4)
    said = 1 / (1 + np.exp(-(vectors @ head.weights + head.bias)))
    assert float(((said - correct) ** 2).mean()) < 0.08


def test_a_gain_inside_its_own_noise_is_worth_nothing() -> None:
    noise = np.random.default_rng(2).normal(size=400)
    noise -= noise.mean()
    assert semantic_router._worth(noise + 0.01) == 0.0
    assert semantic_router._worth(noise - 1.0) == 0.0
    assert semantic_router._worth(noise + 1.0) > 0.99


def test_auc_counts_ties_half() -> None:
    assert area_under_curve(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == 0.5
    assert area_under_curve(np.array([1.0, 1.0]), np.array([0.5, 0.6])) is None


def test_a_missing_checkpoint_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactMissing):
        ModernBertRouter(tmp_path)
