"""The artifact in the package: small, verified, and of permissive sources only."""

from __future__ import annotations

import pytest

from maestroctl.predict.artifact import read_about
from maestroctl.predict.artifact_facts import read_facts
from maestroctl.predict.model import PredictorModel
from maestroctl.predict.shipped import (
    MAX_SHIPPED_BYTES,
    SHIPPED_DIGEST,
    SHIPPED_PATH,
    load_shipped,
)
from maestroctl.predict.traces import TraceJob
from maestroctl.predict.train import NOT_SHIPPABLE


@pytest.fixture(scope="module")
def shipped() -> PredictorModel:
    """Loaded once, digest checked."""
    return load_shipped()


def test_it_is_small_and_has_the_pinned_digest() -> None:
    assert SHIPPED_PATH.stat().st_size <= MAX_SHIPPED_BYTES
    assert read_about(SHIPPED_PATH)["digest"] == SHIPPED_DIGEST


def test_no_source_of_a_doubtful_licence_is_in_it(shipped: PredictorModel) -> None:
    assert shipped.about["sources"]
    assert not set(shipped.about["sources"]) & set(NOT_SHIPPABLE)
    assert not any("chatdev" in app for app in shipped.about["apps"])


def test_it_answers_for_an_application_it_never_saw(
    shipped: PredictorModel, jobs: list[TraceJob]
) -> None:
    for raw in shipped.predict([stage.seen for stage in jobs[0].stages]):
        assert all(0 <= f.q50 <= f.q90 <= 1e6 for f in raw.figures.values())


def test_its_router_knows_models(shipped: PredictorModel) -> None:
    assert shipped.router is not None
    said = shipped.router.confidence("What is 2 + 2?", ["gpt-4", "Phi-3-mini-4k-instruct", "?"])
    assert set(said) == {"gpt-4", "Phi-3-mini-4k-instruct"}


def test_it_says_when_it_was_trained() -> None:
    assert read_facts(SHIPPED_PATH).trained_at is not None
