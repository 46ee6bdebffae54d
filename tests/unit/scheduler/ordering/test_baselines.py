"""The baselines: edf, sjf, las, mlfq, ltr."""

from __future__ import annotations

from dataclasses import replace

import pytest

from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.prediction import Prediction
from maestroctl.scheduler.ordering.edf import NO_DEADLINE_S, Edf
from maestroctl.scheduler.ordering.las import Las
from maestroctl.scheduler.ordering.ltr import Ltr
from maestroctl.scheduler.ordering.mlfq import LEVELS, Mlfq, level_of
from maestroctl.scheduler.ordering.sjf import Sjf
from maestroctl.testing.coordinator_builders import PREDICTION, limited, make_stage
from tests.unit.scheduler.ordering.support import make_costs, make_job, predict

NO_AGING = limited(aging_s=0.0)


def test_edf_goes_by_the_deadline_of_the_job() -> None:
    stage = make_stage(arrival_s=5.0)
    soon = Edf().key(stage, make_job(deadline_s=60.0), PREDICTION, 5.0)
    later = Edf().key(stage, make_job(deadline_s=61.0), PREDICTION, 5.0)
    assert soon == pytest.approx(60.0, abs=1e-3)
    assert soon < later


def test_edf_takes_the_deadline_of_the_stage_where_the_job_has_none() -> None:
    stage = replace(make_stage(), deadline_s=30.0)
    assert Edf().key(stage, make_job(), PREDICTION, 0.0) == pytest.approx(30.0)


def test_edf_puts_jobs_without_a_deadline_last_in_order_of_arrival() -> None:
    early, late = make_stage("b", arrival_s=1.0), make_stage("a", arrival_s=1.001)
    job = make_job()
    keys = [Edf().key(stage, job, PREDICTION, 2.0) for stage in (early, late)]
    assert NO_DEADLINE_S <= keys[0] < keys[1]
    assert Edf().key(late, make_job(deadline_s=4e9), PREDICTION, 2.0) < keys[0]


def test_sjf_goes_by_the_seconds_of_this_stage_prompt_included() -> None:
    policy = Sjf(NO_AGING)
    policy.use(make_costs())
    job = make_job()
    key = policy.key(make_stage(prompt_tokens=100), job, predict(50), 0.0)
    assert key == pytest.approx(0.04 + 0.002 * 100 + 0.042 * 50)
    assert key < policy.key(make_stage(prompt_tokens=2000), job, predict(50), 0.0)


def test_sjf_believes_no_more_than_the_request_allows() -> None:
    policy = Sjf(NO_AGING)
    limited_stage = make_stage(max_tokens=10)
    assert policy.key(limited_stage, make_job(), predict(500), 0.0) == policy.key(
        make_stage(), make_job(), predict(10), 0.0
    )


def test_las_prefers_the_job_that_has_had_least() -> None:
    policy = Las(NO_AGING)
    keys = [policy.key(make_stage(), make_job(attained_s=s), PREDICTION, 0.0) for s in (3, 9)]
    assert keys == [3.0, 9.0]


@pytest.mark.parametrize(
    ("attained_s", "level"), [(0, 0), (1.9, 0), (2, 1), (3.9, 1), (4, 2), (127, 6), (1e6, 7)]
)
def test_mlfq_levels_double(attained_s: float, level: int) -> None:
    assert level_of(attained_s) == level


def test_mlfq_is_first_come_first_served_within_a_level_and_sinks_between_stages() -> None:
    policy = Mlfq(PolicySpec(max_wait_s=120.0))
    fresh, tired = make_job(), make_job(attained_s=3.0)
    assert policy.key(make_stage(arrival_s=7.0), fresh, PREDICTION, 7.0) == 7.0
    assert policy.key(make_stage(arrival_s=7.0), tired, PREDICTION, 7.0) == 7.0 + 120.0


def test_mlfq_makes_nobody_wait_for_younger_stages_for_ever() -> None:
    policy = Mlfq(PolicySpec(max_wait_s=120.0))
    bound_s = policy.overtaken_for_s()
    assert bound_s == 120.0 * (LEVELS - 1)
    worst = policy.key(make_stage(arrival_s=0.0), make_job(attained_s=1e9), PREDICTION, 0.0)
    assert policy.key(make_stage(arrival_s=bound_s + 1), make_job(), PREDICTION, 0.0) > worst


def test_ltr_goes_by_the_score_in_the_event() -> None:
    policy = Ltr(NO_AGING)
    keys = [
        policy.key(make_stage(), make_job(), Prediction(9.0, 9.0, rank_score=score), 0.0)
        for score in (-5.0, 1.5, 80.0)
    ]
    assert keys == [0.0, 1.5, 80.0]
