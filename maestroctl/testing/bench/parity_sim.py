"""The simulated side of `bench-parity`: the trace on the profile that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, JobId, NodeName
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.profile import ProfileRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.profile_from_geometry import size_profile
from maestroctl.sim.jobs import Call, JobPlan, agent_calls, agent_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.world import CPU_ABILITIES, World, WorldSpec
from maestroctl.testing.bench.parity_trace import ParityJob

_NODE_BYTES = 64 << 30
_RTT_S = 0.001
"""Two processes of one machine."""
_SETTLE_S = 10.0
"""Between the warm-up job and the first that counts."""


def sized_costs(record: ProfileRecord, model: ModelSpec) -> ModelProfile:
    """The profile as the node books with it."""
    most = record.costs.max_batch if record.saturated else None
    return size_profile(record.costs, record.geometry, model, most_batch=most)


def simulate(trace: Sequence[ParityJob], record: ProfileRecord, model: ModelSpec) -> list[float]:
    """Latency of each job, seconds; the engine is awake when the first arrives."""
    costs = sized_costs(record, model)
    cluster = ClusterName("local")
    node = NodeSpec(NodeName("local"), memory_bytes=_NODE_BYTES, host_memory_bytes=_NODE_BYTES)
    model = replace(model, max_batch=costs.max_batch, profile=None)
    fleet = FleetSpec(
        models={model.name: model},
        engines={},
        nodes={node.name: node},
        clusters={cluster: ClusterSpec(cluster)},
        policy=PolicySpec(ordering="fcfs"),
    )
    world = World(
        WorldSpec(
            fleet,
            {model.name: costs},
            NetworkSpec(rtt_s=_RTT_S),
            CPU_ABILITIES,
            max_num_batched_tokens=record.engine.max_batched_tokens,
        ),
        PredictionError("none"),
    )
    start_s = costs.cold_start_s + _SETTLE_S
    warm_up = _plan("warm-up", 0.0, ((8, 8),), model)
    plans = [
        _plan(f"j{number:05d}", start_s + job.arrival_s, job.calls, model)
        for number, job in enumerate(trace)
    ]
    result = world.run([warm_up, *plans])
    latency = {
        row.job_id: row.finished_at - row.submitted_at
        for row in result.jobs
        if row.status is JobStatus.FINISHED and row.finished_at is not None
    }
    return [latency[plan.job_id] for plan in plans]


def _plan(
    name: str, arrival_s: float, calls: Sequence[tuple[int, int]], model: ModelSpec
) -> JobPlan:
    made = [Call("agent", (model.name,), prompt, output) for prompt, output in calls]
    return JobPlan(
        JobId(name),
        agent_workflow("parity"),
        ServiceClass.INTERACTIVE,
        arrival_s,
        agent_calls(made),
    )
