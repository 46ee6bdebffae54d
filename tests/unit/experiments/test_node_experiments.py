"""The experiments on node policies: what their figures must obey at a small size."""

from maestroctl.experiments import colocation, degradation
from maestroctl.experiments.harness import Runner, Scale
from maestroctl.sim.workload import JobSource

SMALL = Scale(jobs=20, warmup=0, seeds=1)


def quiet(_line: str) -> None:
    pass


def test_sharing_one_card_costs_little_and_restarting_much():
    figures = colocation.run(SMALL, JobSource(()), Runner(quiet)).headline
    assert 1.0 <= figures["one_card_against_exclusive"] <= 1.12
    assert figures["one_card_against_exclusive"] < figures["one_card_without_prewarming"]
    assert figures["restart_one_card_against_exclusive"] > 3.0


def test_pressure_costs_least_under_algorithm_2():
    headline = degradation.run(SMALL, JobSource(()), Runner(quiet)).headline
    disruption = headline["disruption_s"]["mild"]
    ours = disruption["maestroctl"].mean
    assert ours < disruption["evict_all"].mean
    assert ours < disruption["abort_first"].mean


def test_deep_pressure_reaches_busy_engines():
    rows = degradation.run(Scale(jobs=80, warmup=0), JobSource(()), Runner(quiet)).rows
    ours = {row["pressure"]: row for row in rows if row["policy"] == "maestroctl"}
    assert ours["mild"]["suspends"].mean == ours["mild"]["sent_back"].mean == 0
    assert ours["deep"]["suspends"].mean > 0
