"""When a refit begins, and what is remembered of one that was cut short."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from maestroctl.live.coordinator.refit_rule import (
    FAILURE_PAUSES_S,
    REST_FACTOR,
    RefitOutcome,
    RefitRecord,
    is_due,
)

DONE = RefitRecord(at=1000.0, result=RefitOutcome.NO_BETTER, since=1000.0, seconds=10.0)


@pytest.mark.parametrize(
    ("after", "new", "due"),
    [(0, 10**6, False), (500, 499, False), (500, 500, True), (1, 1, True)],
)
def test_the_first_refit_waits_for_its_stages_alone(after: int, new: int, due: bool) -> None:
    assert is_due(after, new, None, now=0.0) is due


def test_after_one_that_ended_the_machine_rests_in_proportion() -> None:
    ends = DONE.at + DONE.seconds
    rested = ends + REST_FACTOR * DONE.seconds
    assert not is_due(5, 5, DONE, rested - 0.1)
    assert is_due(5, 5, DONE, rested)
    assert not is_due(5, 4, DONE, rested), "rest alone is no reason"


def test_each_failure_in_a_row_rests_longer_up_to_a_limit() -> None:
    record, rests = DONE, []
    for _ in range(len(FAILURE_PAUSES_S) + 3):
        record = record.failed("no memory")
        rests.append(next(s for s in range(10**6) if is_due(1, 1, record, record.at + s)))
    assert rests == [*FAILURE_PAUSES_S, *[FAILURE_PAUSES_S[-1]] * 3]


def test_a_failure_counts_the_same_stages_again() -> None:
    assert DONE.failed("no memory").since == DONE.since


@pytest.mark.parametrize("outcome", list(RefitOutcome))
def test_a_record_survives_a_restart_and_one_cut_short_counts_as_failed(
    outcome: RefitOutcome,
) -> None:
    record = replace(DONE, result=outcome, mae_told=3.5)
    read = RefitRecord.from_json(json.loads(json.dumps(record.to_json())))
    if outcome is RefitOutcome.RUNNING:
        assert read.result is RefitOutcome.FAILED
        assert read.failures == 1
    else:
        assert read == record


def test_a_record_of_another_version_is_refused() -> None:
    for raw in ({}, {"at": 1.0, "result": "gone"}, {**DONE.to_json(), "colour": "red"}):
        with pytest.raises((TypeError, KeyError, ValueError)):
            RefitRecord.from_json(raw)
