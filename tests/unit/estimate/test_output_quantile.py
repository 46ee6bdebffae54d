"""The output quantile that admission books, from the two that are predicted."""

import random
from statistics import quantiles

import pytest

from maestroctl.estimate.output_quantile import OutputQuantile


def test_at_the_predicted_quantiles_it_is_what_was_predicted():
    assert OutputQuantile(0.9).of(40.0, 100.0) == 100.0
    assert OutputQuantile(0.5).of(40.0, 100.0) == pytest.approx(40.0)


def test_it_rises_with_the_quantile_and_certain_lengths_stay():
    found = [OutputQuantile(q).of(40.0, 100.0) for q in (0.5, 0.7, 0.9, 0.99)]
    assert found == sorted(set(found))
    assert OutputQuantile(0.99).of(7.0, 7.0) == pytest.approx(7.0)
    assert OutputQuantile(0.99).of(0.0, 0.0) == 0.0


@pytest.mark.parametrize("quantile", [0.6, 0.75, 0.95, 0.98])
def test_it_covers_so_many_of_log_normal_lengths(quantile):
    rng = random.Random(1)
    lengths = [rng.lognormvariate(5.0, 0.8) for _ in range(20_000)]
    tenths = quantiles(lengths, n=10)
    booked = OutputQuantile(quantile).of(tenths[4], tenths[8])
    covered = sum(length <= booked for length in lengths) / len(lengths)
    assert covered == pytest.approx(quantile, abs=0.01)


@pytest.mark.parametrize("quantile", [0.0, 0.49, 1.0])
def test_other_quantiles_are_refused(quantile):
    with pytest.raises(ValueError, match="quantile"):
        OutputQuantile(quantile)
