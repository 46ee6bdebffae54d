"""Fleets and workloads that the experiments share; every free parameter is in this file.

Devices are A100 cards of 40 GB; costs are those of the profiles that come with maestroctl
(`profiles/nvidia-a100-40gb`), derived by arithmetic from the data sheet and Maestro Table V.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from maestroctl.config.profile import load_profile
from maestroctl.config.shipped import shipped_dir
from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.profile import ProfileRecord
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import MIB
from maestroctl.estimate.profile_from_geometry import size_profile
from maestroctl.experiments.harness import Scale
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import ArrivalSpec, ClassSpec, JobSource, WorkloadSpec
from maestroctl.sim.world import WorldSpec

GB = 10**9
A100_BYTES = 40 * GB
HOST_BYTES = 256 * GB


def _shipped(name: str) -> ProfileRecord:
    return load_profile(shipped_dir("profiles") / "nvidia-a100-40gb" / f"{name}.toml")


_NAMES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
RECORDS: Mapping[str, ProfileRecord] = {name: _shipped(name) for name in _NAMES}
QWEN3: Mapping[str, tuple[float, int, KvGeometry]] = {
    name: (
        record.costs.weights_bytes / GB,
        record.costs.context_bytes // MIB,
        record.geometry,
    )
    for name, record in RECORDS.items()
}
"""Weights in GB and context in MB (Maestro Table V), and the shape of the KV cache."""

INTERACTIVE_APPS = (
    *("fireact_hotpotqa", "fireact_multitask", "intercode_bash", "intercode_python"),
    *("intercode_sql", "reflexion_hotpotqa", "tau_airline", "tau_retail"),
)
"""Somebody talks to an assistant: many calls, short answers."""
BATCH_APPS = (
    *("aider_swebench", "chatdev_humaneval", "chatdev_mmlu", "chatdev_programdev"),
    *("magentic_one", "mini_swe_agent", "tau2_airline", "tau2_retail"),
)
"""Pipelines that nobody waits for: code, research, long answers."""

MODEL = "qwen3-8b"
MAX_BATCH = 16
MAX_MODEL_LEN = 8192
"""Longer prompts are cut: engines keep prefixes of repeated prompts, the simulator does not."""
KV_BYTES = 20 * GB
"""KV pool of the one model on a card: what is left beside its weights (Maestro Table V: 20.07)."""
UNBOUNDED_S = 1e9
"""`max_wait_s` here: the papers' orders have no waiting bound; docs/experiments.md has its cost."""
ROUTING = "single_node"
"""Unless the routing itself is what is compared: the papers' orders on the plainest routing."""
LENGTH_RHO = 0.5
"""Log error where an experiment asks for one; `MEASURED` is the default."""
MEASURED = PredictionError("measured")
"""What our policies are told: as wrong as our predictors were in cross-validation."""
TRUTH = PredictionError("none")
"""What oracles are told."""


def qwen3_profile(
    name: str,
    *,
    max_batch: int = MAX_BATCH,
    length: int = MAX_MODEL_LEN,
    kv_bytes: int | None = None,
) -> ModelProfile:
    """Derived cost of a Qwen3 model on an A100."""
    spec = ModelSpec(
        ModelName(name), max_model_len=length, max_batch=max_batch, kv_cache_bytes=kv_bytes
    )
    return size_profile(RECORDS[name].costs, RECORDS[name].geometry, spec)


def make_fleet(
    profiles: Sequence[ModelProfile],
    nodes: int,
    policy: PolicySpec | None = None,
    *,
    memory_bytes: int = A100_BYTES,
) -> FleetSpec:
    """Alike nodes of one card."""
    policy = policy or PolicySpec(ordering="fcfs", residency="lru", max_wait_s=UNBOUNDED_S)
    if policy.routing is None:
        policy = replace(policy, routing=ROUTING)
    cluster = ClusterName("local")
    names = [NodeName(f"n{number}") for number in range(1, nodes + 1)]
    return FleetSpec(
        models={
            p.model: ModelSpec(p.model, max_batch=p.max_batch, max_model_len=p.max_model_len)
            for p in profiles
        },
        engines={},
        nodes={
            name: NodeSpec(name, memory_bytes=memory_bytes, host_memory_bytes=HOST_BYTES)
            for name in names
        },
        clusters={cluster: ClusterSpec(cluster)},
        policy=policy,
    )


def mixed_simulation(
    source: JobSource,
    scale: Scale,
    *,
    ordering: str,
    seed: int,
    nodes: int,
    rate_rps: float,
    batch_ratio: float,
    deadline_factor: float | None,
    error: PredictionError = MEASURED,
) -> SimulationSpec:
    """Interactive and batch jobs on one model and alike nodes.

    Args:
        deadline_factor: a job's deadline is this times its own time on an idle fleet.
        error: of predictions; as wrong as they were measured to be.
    """
    known = source.apps
    classes = tuple(
        ClassSpec(service_class, share, tuple(app for app in apps if app in known), deadline_factor)
        for service_class, share, apps in (
            (ServiceClass.INTERACTIVE, 1.0 - batch_ratio, INTERACTIVE_APPS),
            (ServiceClass.BATCH, batch_ratio, BATCH_APPS),
        )
    )
    arrivals = ArrivalSpec("poisson", rate_rps)
    workload = WorkloadSpec(scale.jobs, classes, arrivals, scale.warmup, seed, start_s=120.0)
    profile = qwen3_profile(MODEL, kv_bytes=KV_BYTES)
    policy = PolicySpec(ordering=ordering, max_wait_s=UNBOUNDED_S)
    fleet = make_fleet([profile], nodes, policy)
    world = WorldSpec(fleet, {profile.model: profile}, NetworkSpec(snapshot_every_s=5.0))
    return SimulationSpec(world, workload, error, source)
