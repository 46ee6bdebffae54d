"""Who dominates whom."""

from __future__ import annotations

import pytest

from maestroctl.experiments.pareto import (
    Point,
    dominated,
    dominates,
    gain_at_latency,
    mean_lead,
    speedup_at_quality,
    uncovered,
)

OURS = [Point("ours", 10.0, 40.0), Point("ours", 20.0, 50.0)]


def test_a_point_dominates_when_it_is_better_in_one_and_no_worse_in_the_other() -> None:
    here = Point("here", 10.0, 40.0)
    assert dominates(Point("", 9.0, 40.0), here)
    assert dominates(Point("", 10.0, 41.0), here)
    assert not dominates(Point("", 10.0, 40.0), here), "an equal point does not"
    assert not dominates(Point("", 9.0, 39.0), here)
    assert not dominates(Point("", 11.0, 41.0), here)


def test_dominated_names_every_pair() -> None:
    good, bad = Point("good", 15.0, 55.0), Point("bad", 30.0, 30.0)
    assert dominated(OURS, [good, bad]) == [(OURS[1], good)]


def test_a_baseline_is_uncovered_where_no_point_matches_both_of_its_figures() -> None:
    inside, between, beyond = Point("", 25.0, 45.0), Point("", 15.0, 45.0), Point("", 99.0, 60.0)
    assert uncovered(OURS, [inside, between, beyond]) == [between, beyond]


def test_speed_up_and_gain_are_read_off_measured_points() -> None:
    other = Point("other", 30.0, 45.0)
    assert speedup_at_quality(OURS, other) == 1.5
    assert gain_at_latency(OURS, other) == 5.0
    assert gain_at_latency(OURS, Point("", 200**0.5, 41.0)) == pytest.approx(4.0), "halfway between"
    assert speedup_at_quality(OURS, Point("", 30.0, 60.0)) is None
    assert gain_at_latency(OURS, Point("", 5.0, 10.0)) is None


def test_the_lead_is_the_mean_height_over_the_latencies_that_both_reach() -> None:
    higher = [Point("", 10.0, 43.0), Point("", 20.0, 53.0)]
    assert mean_lead(higher, OURS) == pytest.approx(3.0)
    assert mean_lead(OURS, higher) == pytest.approx(-3.0)
    assert mean_lead(OURS, OURS) == 0.0


def test_points_that_are_dominated_are_no_part_of_a_frontier() -> None:
    assert mean_lead([*OURS, Point("", 15.0, 10.0)], OURS) == 0.0


def test_frontiers_without_a_latency_in_common_are_not_compared() -> None:
    assert mean_lead(OURS, [Point("", 30.0, 40.0), Point("", 40.0, 50.0)]) is None
