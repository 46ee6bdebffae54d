"""Small simulated fleets whose engines cost round numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, JobId, ModelName, NodeName
from maestroctl.domain.llm import IterationCost, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import GIB
from maestroctl.sim.jobs import Call, JobPlan, agent_calls, agent_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.world import SimResult, World, WorldSpec
from maestroctl.testing.plain_policy import PLAIN

NO_NETWORK = NetworkSpec(rtt_s=0.0, send_soon_s=0.0, snapshot_every_s=None)
MS = IterationCost(c0_s=0.001, c1_s=0.0, c2_s=0.0, cp_s=0.0)
"""Every token takes a millisecond, whatever the batch."""


def make_profile(model: str = "m", **changes: Any) -> ModelProfile:
    """A model that is ready at once and holds a million tokens of KV."""
    fields: dict[str, Any] = {
        "weights_bytes": GIB,
        "context_bytes": GIB // 8,
        "peak_bytes": 0,
        "start_peak_bytes": 0,
        "host_asleep_bytes": GIB,
        "kv_bytes_per_token": 1024,
        "kv_pool_bytes": GIB,
        "kv_least_bytes": GIB // 1024,
        "block_tokens": 16,
        "max_model_len": 1 << 20,
        "max_batch": 1,
        "cold_start_s": 0.0,
        "wake_s": 0.0,
        "sleep_s": 0.0,
        "iteration": MS,
    }
    return ModelProfile(model=ModelName(model), **(fields | changes))


def make_world(
    profiles: Sequence[ModelProfile] = (),
    *,
    nodes: int = 1,
    policy: PolicySpec | None = None,
    network: NetworkSpec = NO_NETWORK,
    memory: int = 1 << 50,
    error: PredictionError | None = None,
    prefix_cache: bool = False,
    **options: Any,
) -> World:
    """Nodes that each may run all of `profiles`."""
    shown = profiles or (make_profile(),)
    cluster = ClusterName("local")
    fleet = FleetSpec(
        models={p.model: ModelSpec(p.model, max_batch=p.max_batch) for p in shown},
        engines={},
        nodes={
            NodeName(f"n{i}"): NodeSpec(NodeName(f"n{i}"), memory_bytes=memory)
            for i in range(1, nodes + 1)
        },
        clusters={cluster: ClusterSpec(cluster)},
        policy=policy or PLAIN,
    )
    spec = WorldSpec(fleet, {p.model: p for p in shown}, network, prefix_cache=prefix_cache)
    return World(spec, error, **options)


def one_call(
    number: int, at_s: float, tokens: int, *, prompt: int = 1, model: str = "m", **fields: Any
) -> JobPlan:
    """A job of one call."""
    call = Call("assistant", (ModelName(model),), prompt, tokens)
    return many_calls(number, at_s, [call], **fields)


def many_calls(number: int, at_s: float, calls: Sequence[Call], **fields: Any) -> JobPlan:
    """A job of these calls, one after the other."""
    return JobPlan(
        JobId(f"j{number:06d}"),
        _WORKFLOW,
        fields.pop("service_class", ServiceClass.INTERACTIVE),
        at_s,
        agent_calls(calls),
        **fields,
    )


_WORKFLOW = agent_workflow("flow")


def waits(result: SimResult) -> list[float]:
    """Seconds that jobs spent beyond their service, for engines of `MS` and batch 1."""
    tokens = {row.job_id: (row.output_tokens or 0) for row in result.stages}
    return [
        (job.finished_at or 0.0) - job.submitted_at - 0.001 * tokens[job.job_id]
        for job in result.jobs
    ]


def poisson_calls(
    seed: int, number: int, rate_rps: float, tokens: Any, **fields: Any
) -> list[JobPlan]:
    """Jobs of one call; `tokens(rng)` draws a length."""
    rng = random.Random(seed)
    at_s = 1.0
    plans = []
    for index in range(number):
        at_s += rng.expovariate(rate_rps)
        plans.append(one_call(index, at_s, tokens(rng), **fields))
    return plans
