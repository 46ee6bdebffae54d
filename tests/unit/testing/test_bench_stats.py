from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.testing.bench.stats import Spread, median, percentile, spread, summarize

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([3.0], 99, 3.0),
        ([1.0, 2.0], 50, 1.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 25, 2.0),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 90, 4.6),
        ([1.0, math.inf], 100, math.inf),
    ],
)
def test_percentiles_interpolate_between_neighbours(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


@given(numbers)
def test_the_median_is_the_usual_one(values: list[float]) -> None:
    assert median(values) == pytest.approx(statistics.median(values))


@given(numbers, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_never_fall_and_stay_inside(
    values: list[float], one: float, other: float
) -> None:
    low, high = sorted((one, other))
    slack = 1e-6
    assert percentile(values, low) <= percentile(values, high) + slack
    assert min(values) - slack <= percentile(values, low) <= max(values) + slack


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_no_values_and_absurd_percents_are_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError):
        percentile(values, percent)


def test_a_summary_has_every_figure() -> None:
    summary = summarize([float(value) for value in range(101, 0, -1)])
    assert summary.as_dict() == {
        "count": 101,
        "mean": 51.0,
        "min": 1.0,
        "median": 51.0,
        "p90": 91.0,
        "p99": 100.0,
        "max": 101.0,
    }


def test_a_spread_is_median_lowest_and_highest() -> None:
    figure = spread([4.0, 2.0, 3.0])
    assert figure == Spread(median=3.0, low=2.0, high=4.0, repeats=3)
    assert figure.relative == pytest.approx(2 / 3)
    assert f"{figure:.1f}" == "3.0 (2.0 to 4.0)"
    assert spread([0.0]).relative == 0.0
    assert figure.as_dict()["relative"] == figure.relative
