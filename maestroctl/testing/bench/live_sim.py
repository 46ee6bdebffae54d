"""The simulated side of `bench-live`: the same jobs on the costs that were measured.

What is said of a stage and of the rest of its job has the errors of our predictors, as in the
experiments (`sim.measured_error`); every policy is told the same.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, JobId, ModelName, NodeName
from maestroctl.domain.llm import IterationCost, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.sim.jobs import Call, JobPlan, agent_calls, agent_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.world import CPU_ABILITIES, World, WorldSpec
from maestroctl.testing.bench.live_run import POLICIES
from maestroctl.testing.bench.live_trace import MODELS, Costs, LiveJob

_SETTLE_S = 10.0
_SLEEP_SHARE = 0.3
"""Of a switch, the rest is the wake (measured: 0.9 s and 2 s on two CPU cores)."""


def simulate(
    policy: str,
    jobs: Sequence[LiveJob],
    deadlines: Mapping[str, float],
    costs: Costs,
    profile: ModelProfile,
    memory_bytes: int,
) -> dict[str, float]:
    """Latency of each job, seconds. Every engine has been started before the first arrives."""
    priced = _priced(profile, costs)
    cluster = ClusterName("local")
    models = {ModelName(m): ModelSpec(ModelName(m), max_batch=costs.batch) for m in MODELS}
    node = NodeSpec(NodeName("local"), memory_bytes=memory_bytes, host_memory_bytes=memory_bytes)
    fleet = FleetSpec(
        models=models,
        engines={},
        nodes={node.name: node},
        clusters={cluster: ClusterSpec(cluster)},
        policy=PolicySpec(**POLICIES[policy]),  # type: ignore[arg-type]
    )
    profiles = {model: replace(priced, model=model) for model in models}
    world = World(
        WorldSpec(fleet, profiles, NetworkSpec(rtt_s=0.001), CPU_ABILITIES),
        PredictionError("measured"),
    )
    start_s = len(MODELS) * (priced.cold_start_s + _SETTLE_S)
    plans = [
        make_plan(f"warm-{model}", model, number * (priced.cold_start_s + _SETTLE_S), ((8, 2),))
        for number, model in enumerate(MODELS)
    ]
    for job in jobs:
        plan = make_plan(job.name, job.model, start_s + job.arrival_s, job.calls, job.app)
        plans.append(replace(plan, service_class=job.service_class, deadline_s=deadlines[job.name]))
    rows = world.run(plans).jobs
    names = {job.name for job in jobs}
    return {
        row.job_id: (row.finished_at or float("inf")) - row.submitted_at
        for row in rows
        if row.job_id in names
    }


def _priced(profile: ModelProfile, costs: Costs) -> ModelProfile:
    """What the node books, at the speed that was measured."""
    c1_s = max(0.0, (costs.batch_token_s - costs.token_s) / (costs.batch - 1))
    return replace(
        profile,
        iteration=IterationCost(costs.token_s - c1_s, c1_s, 0.0, costs.prompt_s),
        wake_s=costs.switch_s * (1 - _SLEEP_SHARE),
        sleep_s=costs.switch_s * _SLEEP_SHARE,
        max_batch=costs.batch,
    )


def make_plan(
    name: str, model: str, arrival_s: float, calls: Sequence[tuple[int, int]], app: str = "warm"
) -> JobPlan:
    """A job of one model, with the draws of what predictors get wrong of each call."""
    rng = random.Random(name)
    made = [
        Call("agent", (ModelName(model),), prompt, output, noise=(rng.gauss(), rng.gauss()))
        for prompt, output in calls
    ]
    workflow = agent_workflow(app)
    return JobPlan(JobId(name), workflow, ServiceClass.BATCH, arrival_s, agent_calls(made))
