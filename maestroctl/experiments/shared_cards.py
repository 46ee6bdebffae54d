"""What the experiments on several models that share cards have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.experiments.setup import A100_BYTES, make_fleet
from maestroctl.sim.jobs import Call, JobPlan, JobRow, agent_calls, agent_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.workload import ClassSpec
from maestroctl.sim.world import GPU_ABILITIES, SimResult, World, WorldSpec

RESTART = EngineAbilities()
"""Engines that can only be stopped and started again."""


def make_cards(
    profiles: Sequence[ModelProfile],
    *,
    nodes: int = 1,
    num_devices: int = 1,
    memory_bytes: int = A100_BYTES,
    policy: PolicySpec | None = None,
    abilities: EngineAbilities = GPU_ABILITIES,
) -> World:
    """Nodes whose cards every model may use; they tell of changes at once."""
    return _make_world(profiles, nodes, num_devices, memory_bytes, policy, abilities)


def make_exclusive(profiles: Sequence[ModelProfile]) -> World:
    """A card for each model."""
    return _make_world(profiles, len(profiles), 1, A100_BYTES, None, RESTART, exclusive=True)


def _make_world(
    profiles: Sequence[ModelProfile],
    nodes: int,
    num_devices: int,
    memory_bytes: int,
    policy: PolicySpec | None,
    abilities: EngineAbilities,
    *,
    exclusive: bool = False,
) -> World:
    fleet = make_fleet(profiles, nodes, policy, memory_bytes=memory_bytes)
    if exclusive:
        own = zip(fleet.nodes.items(), profiles, strict=True)
        fleet = replace(
            fleet, nodes={name: replace(node, models=(p.model,)) for (name, node), p in own}
        )
    costs = {profile.model: profile for profile in profiles}
    network = NetworkSpec(snapshot_every_s=None)
    return World(WorldSpec(fleet, costs, network, abilities, num_devices))


def popular(
    models: Sequence[str], shares: Sequence[float], batch_share: float = 0.0
) -> tuple[ClassSpec, ...]:
    """Job classes by popularity of the models, each with the same part that nobody waits for."""
    parts = ((ServiceClass.INTERACTIVE, 1.0 - batch_share), (ServiceClass.BATCH, batch_share))
    return tuple(
        ClassSpec(service_class, share * part, models=(ModelName(model),))
        for model, share in zip(models, shares, strict=True)
        for service_class, part in parts
        if part
    )


def agent_job(name: str, arrival_s: float, calls: Sequence[Call]) -> JobPlan:
    """An agent that somebody waits for, and its calls one after the other."""
    return JobPlan(
        JobId(name), agent_workflow("agent"), ServiceClass.INTERACTIVE, arrival_s,
        agent_calls(calls),
    )  # fmt: skip


def mean_latency_s(result: SimResult, jobs: Iterable[JobRow] | None = None) -> float:
    """Of all jobs or some, those that failed included."""
    return fmean(
        (job.finished_at or result.end_s) - job.submitted_at
        for job in (result.jobs if jobs is None else jobs)
    )
