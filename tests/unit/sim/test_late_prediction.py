"""A prediction that comes after its stage was sent corrects the booking on the node, as live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.domain.outcome import Outcome
from maestroctl.sim.prediction import PredictionError
from tests.unit.sim.support import NO_NETWORK, make_profile, make_world, one_call


def play(tokens: int, prediction_s: float | None, kind: str = "none") -> tuple[int, int, int]:
    """(bookings corrected, outgrown, stale) of one stage whose tokens take a millisecond each."""
    world = make_world(
        [make_profile(max_batch=2)],
        network=replace(NO_NETWORK, prediction_s=prediction_s),
        error=PredictionError(kind),
    )
    result = world.run([one_call(0, 0.0, tokens)])
    assert [stage.outcome for stage in result.stages] == [Outcome.FINISHED]
    (node,) = world.nodes.values()
    stats = node.core.stats
    node.core.validate()
    return stats.rebooked, stats.outgrown, stats.stale


def test_a_stage_longer_than_its_prior_is_booked_in_time() -> None:
    assert play(2000, None, "prior")[1] > 0, "on the prior alone it outgrows its booking"
    assert play(2000, 0.05) == (1, 0, 0)


def test_a_booking_that_was_too_large_shrinks_and_still_holds() -> None:
    assert play(100, 0.05) == (1, 0, 0)


def test_a_prediction_of_a_stage_that_has_left_changes_nothing() -> None:
    assert play(10, 0.05) == (0, 0, 0)


@pytest.mark.parametrize("prediction_s", [None, 0.05])
def test_the_same_prediction_later_changes_no_length(prediction_s: float | None) -> None:
    world = make_world(
        [make_profile(max_batch=2)], network=replace(NO_NETWORK, prediction_s=prediction_s)
    )
    result = world.run([one_call(0, 0.0, 300), one_call(1, 0.0, 700)])
    assert sorted(stage.output_tokens or 0 for stage in result.stages) == [300, 700]
