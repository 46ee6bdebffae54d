"""On one node there is nothing to route: `maestroctl` and `single_node` do the same."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from maestroctl.experiments.setup import GB, make_fleet, qwen3_profile
from maestroctl.experiments.shared_cards import popular
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import ArrivalSpec, JobSource, WorkloadSpec, make_plans
from maestroctl.sim.world import World, WorldSpec

MODELS = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b")


@given(
    seed=st.integers(0, 10**6),
    rate_rps=st.floats(0.05, 5.0),
    memory_gb=st.sampled_from([20, 32, 40]),
    ordering=st.sampled_from(["fcfs", "stjf", "workflow_srtf", "workflow_slo"]),
)
@settings(max_examples=10, deadline=None)
def test_one_node_is_served_alike(
    seed: int, rate_rps: float, memory_gb: int, ordering: str
) -> None:
    profiles = [qwen3_profile(name, length=4096, kv_bytes=2 * GB, max_batch=4) for name in MODELS]
    costs = {profile.model: profile for profile in profiles}
    fleet = make_fleet(profiles, 1, memory_bytes=memory_gb * GB)
    workload = WorkloadSpec(
        20, popular(MODELS, (0.5, 0.3, 0.2), 0.4), ArrivalSpec("bursty", rate_rps, 2.0), seed=seed
    )
    plans = make_plans(workload, JobSource(), costs)
    runs = []
    for routing in ("single_node", "maestroctl"):
        policy = replace(fleet.policy, ordering=ordering, routing=routing)
        spec = WorldSpec(replace(fleet, policy=policy), costs, NetworkSpec(snapshot_every_s=1.0))
        result = World(spec, PredictionError("lognormal", 0.5)).run(plans)
        runs.append({row.stage_id: (row.dispatched_at, row.ended_at) for row in result.stages})
    plain, ours = runs
    assert plain.keys() == ours.keys()
    for stage_id, times in plain.items():
        assert ours[stage_id] == pytest.approx(times), stage_id
