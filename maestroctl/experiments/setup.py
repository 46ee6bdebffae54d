"""Fleets and workloads that the experiments share; every free parameter is in this file.

Devices are A100 cards of 40 GB; costs are derived by arithmetic (`estimate.profile_from_geometry`:
data-sheet bandwidth and half of its arithmetic rate), with weights and contexts of Maestro Table V.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import MIB
from maestroctl.estimate.profile_from_geometry import estimate_profile
from maestroctl.sim.config import SimulationSpec
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.workload import ArrivalSpec, ClassSpec, JobSource, WorkloadSpec
from maestroctl.sim.world import WorldSpec

GB = 10**9
A100_BYTES = 40 * GB
HOST_BYTES = 256 * GB

QWEN3: Mapping[str, tuple[float, int, KvGeometry]] = {
    "qwen3-0.6b": (1.12, 194, KvGeometry(28, 8, 128)),
    "qwen3-1.7b": (3.21, 194, KvGeometry(28, 8, 128)),
    "qwen3-4b": (7.55, 256, KvGeometry(36, 8, 128)),
    "qwen3-8b": (15.27, 245, KvGeometry(36, 8, 128)),
    "qwen3-14b": (27.52, 286, KvGeometry(40, 8, 128)),
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
LENGTH_RHO = 0.5
"""Log error of the predictions that our policies get; the oracles get the truth."""


def qwen3_profile(
    name: str,
    *,
    max_batch: int = MAX_BATCH,
    length: int = MAX_MODEL_LEN,
    kv_bytes: int | None = None,
) -> ModelProfile:
    """Derived cost of a Qwen3 model on an A100."""
    weights_gb, context_mb, geometry = QWEN3[name]
    spec = ModelSpec(
        ModelName(name), max_model_len=length, max_batch=max_batch, kv_cache_bytes=kv_bytes
    )
    profile = estimate_profile(spec, geometry, round(weights_gb * GB), "cuda", length)
    return replace(profile, context_bytes=context_mb * MIB, origin="derived")


def make_fleet(
    profiles: Sequence[ModelProfile],
    nodes: int,
    policy: PolicySpec | None = None,
    *,
    memory_bytes: int = A100_BYTES,
) -> FleetSpec:
    """Alike nodes of one card."""
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
        policy=policy or PolicySpec(),
    )


def mixed_workload(
    source: JobSource,
    *,
    jobs: int,
    warmup: int,
    seed: int,
    rate_rps: float,
    batch_ratio: float,
    deadline_factor: float | None,
) -> WorkloadSpec:
    """Interactive and batch jobs; a job's deadline is a factor on its own time on an idle fleet."""
    known = source.apps
    classes = (
        ClassSpec(
            ServiceClass.INTERACTIVE,
            1.0 - batch_ratio,
            tuple(app for app in INTERACTIVE_APPS if app in known),
            deadline_factor,
        ),
        ClassSpec(
            ServiceClass.BATCH,
            batch_ratio,
            tuple(app for app in BATCH_APPS if app in known),
            deadline_factor,
        ),
    )
    arrivals = ArrivalSpec("poisson", rate_rps)
    return WorkloadSpec(jobs, classes, arrivals, warmup, seed, start_s=120.0)


def mixed_simulation(
    source: JobSource,
    *,
    jobs: int,
    warmup: int,
    seed: int,
    nodes: int,
    rate_rps: float,
    batch_ratio: float,
    deadline_factor: float | None,
    policy: PolicySpec | None = None,
) -> SimulationSpec:
    """One model, alike nodes, predictions with a log error of `LENGTH_RHO`."""
    profile = qwen3_profile(MODEL, kv_bytes=KV_BYTES)
    workload = mixed_workload(
        source,
        jobs=jobs,
        warmup=warmup,
        seed=seed,
        rate_rps=rate_rps,
        batch_ratio=batch_ratio,
        deadline_factor=deadline_factor,
    )
    network = NetworkSpec(snapshot_every_s=5.0)
    world = WorldSpec(make_fleet([profile], nodes, policy), {profile.model: profile}, network)
    return SimulationSpec(world, workload, PredictionError("lognormal", LENGTH_RHO), source)


TRUTH = PredictionError("none")


def with_truth(spec: SimulationSpec, ordering: str) -> SimulationSpec:
    """Oracle policies are told the truth, the others what a predictor would say."""
    return replace(spec, error=TRUTH) if ordering.startswith("oracle") else spec
