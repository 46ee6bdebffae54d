"""Fleets and jobs of `frontier`; every free parameter is in this file.

Cards are RTX A6000 (48 GB, 768 GB/s, 155 TFLOP/s in bf16) as in Chimera's testbed; costs are
arithmetic, as in `estimate.profile_from_geometry` with this card's figures. A 32B model runs on a
pair of cards (tensor parallel), which counts as one card of twice the size. Every engine is up
before the first job and stays up; placement and memory are not what this experiment is about.

Pools stand for the paper's, with the models of these families that the correctness tables hold.
They are named best first, which is what policies without a router go by.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, JobId, ModelName, NodeName
from maestroctl.domain.llm import IterationCost, KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.estimate.kv_cache import estimate_kv_bytes_per_token
from maestroctl.estimate.profile_from_geometry import CUDA_C1_S, CUDA_OVERHEAD_S, estimate_profile
from maestroctl.predict.answered_query import AnsweredQuery
from maestroctl.sim.arrivals import poisson_times
from maestroctl.sim.jobs import Call, JobPlan, chain_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.world import WorldSpec

GB = 10**9
CARD_BYTES = 48 * GB
CARD_BYTES_PER_S = 768e9
CARD_WEIGHT_BYTES_PER_PREFILL_S = 77e12
"""2 FLOP per parameter of 2 bytes, at half of 155 TFLOP/s."""
MAX_BATCH = 32
MAX_MODEL_LEN = 8192
SYSTEM_PROMPT_TOKENS = 200
FLEET_READY_S = 1.0
"""When the first job may come: engines are up by then."""

MODELS: Mapping[str, tuple[float, int, KvGeometry]] = {
    "Qwen2.5-3B-Instruct": (6.2, 1, KvGeometry(36, 2, 128)),
    "Qwen2.5-7B-Instruct": (15.2, 1, KvGeometry(28, 4, 128)),
    "Qwen2.5-32B-Instruct": (65.5, 2, KvGeometry(64, 8, 128)),
    "gemma-2-2b-it": (5.2, 1, KvGeometry(26, 4, 256)),
    "Meta-Llama-3.1-8B-Instruct": (16.1, 1, KvGeometry(32, 8, 128)),
}
"""Weights in GB, cards, shape of the KV cache over all of them."""

POOLS: Mapping[str, tuple[str, ...]] = {
    "qwen 7+3": ("Qwen2.5-7B-Instruct", "Qwen2.5-3B-Instruct"),
    "qwen 32+3": ("Qwen2.5-32B-Instruct", "Qwen2.5-3B-Instruct"),
    "llama 8 + gemma 2": ("Meta-Llama-3.1-8B-Instruct", "gemma-2-2b-it"),
    "qwen 32+7+3": ("Qwen2.5-32B-Instruct", "Qwen2.5-7B-Instruct", "Qwen2.5-3B-Instruct"),
}
"""The paper's: Qwen 1.5+7B, Qwen 1.5+14B, Llama 3B + Ministral 8B, Qwen 1.5+3+14B."""


@dataclass(frozen=True, slots=True)
class TaskSet:
    """Questions of one kind, and the workflow that answers them.

    Attributes:
        dataset: correctness table.
        roles: of the workflow, in order, with their share of the recorded answer.
    """

    name: str
    dataset: str
    roles: tuple[tuple[str, float], ...]


TASK_SETS = (
    TaskSet("math", "zeroeval_math-l5", (("solver", 0.75), ("verifier", 0.25))),
    TaskSet("code", "zeroeval_crux", (("planner", 0.25), ("coder", 0.5), ("qa", 0.25))),
)
"""MATH and, in place of APPS, CRUXEval. The tables hold one answer per question: its tokens are cut
into the stages of the paper's workflows, so totals are as recorded."""


def make_profile(name: str) -> ModelProfile:
    """Derived cost of a model on its cards."""
    weights_gb, cards, geometry = MODELS[name]
    spec = ModelSpec(ModelName(name), max_model_len=MAX_MODEL_LEN, max_batch=MAX_BATCH)
    weights = round(weights_gb * GB)
    profile = estimate_profile(spec, geometry, weights, "cuda", MAX_MODEL_LEN)
    speed = CARD_BYTES_PER_S * cards
    cost = IterationCost(
        c0_s=CUDA_OVERHEAD_S + weights / speed,
        c1_s=CUDA_C1_S,
        c2_s=estimate_kv_bytes_per_token(geometry) / speed,
        cp_s=weights / (CARD_WEIGHT_BYTES_PER_PREFILL_S * cards),
    )
    room = round(0.9 * CARD_BYTES * cards) - profile.awake_bytes
    return replace(profile, iteration=cost, kv_pool_bytes=room, cold_start_s=0.01, origin="derived")


def make_world(models: Sequence[str], replicas: int, policy: PolicySpec) -> WorldSpec:
    """`replicas` engines of each model, each on its own cards."""
    cluster = ClusterName("local")
    profiles = {ModelName(name): make_profile(name) for name in models}
    nodes: dict[NodeName, NodeSpec] = {}
    for number, name in enumerate(models, start=1):
        for replica in range(1, replicas + 1):
            node = NodeName(f"m{number}-{replica}")
            nodes[node] = NodeSpec(
                node,
                memory_bytes=CARD_BYTES * MODELS[name][1],
                host_memory_bytes=256 * GB,
                models=(ModelName(name),),
            )
    fleet = FleetSpec(
        models={
            m: ModelSpec(m, max_batch=MAX_BATCH, max_model_len=MAX_MODEL_LEN) for m in profiles
        },
        engines={},
        nodes=nodes,
        clusters={cluster: ClusterSpec(cluster)},
        policy=policy,
    )
    return WorldSpec(fleet, profiles, NetworkSpec(snapshot_every_s=5.0, progress_every_s=1.0))


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A job and the question it is about."""

    plan: JobPlan
    query: AnsweredQuery


def make_jobs(
    task: TaskSet,
    models: Sequence[str],
    queries: Sequence[AnsweredQuery],
    *,
    jobs: int,
    rate_rps: float,
    seed: int,
) -> list[QueryJob]:
    """Jobs of a run in order of arrival; every job draws from a generator of its own."""
    times = poisson_times(random.Random(f"{seed}/arrivals"), jobs, rate_rps)
    workflow = chain_workflow(task.name, [role for role, _ in task.roles])
    made = []
    for number, at_s in enumerate(times):
        rng = random.Random(f"{seed}/job/{number}")
        query = rng.choice(queries)
        plan = JobPlan(
            JobId(f"j{number:06d}"),
            workflow,
            ServiceClass.INTERACTIVE,
            FLEET_READY_S + at_s,
            {
                (f"s{step}", 1, 0): [call]
                for step, call in enumerate(_make_calls(task, models, query, rng), start=1)
            },
            confidence={ModelName(model): query.confidence[model] for model in models},
        )
        made.append(QueryJob(plan, query))
    return made


def limit_to(jobs: Sequence[QueryJob], model: str) -> list[QueryJob]:
    """The same jobs with one candidate."""
    only = (ModelName(model),)
    return [
        QueryJob(
            replace(
                job.plan,
                calls={
                    run: [replace(call, models=only) for call in calls]
                    for run, calls in job.plan.calls.items()
                },
            ),
            job.query,
        )
        for job in jobs
    ]


def with_confidence(jobs: Sequence[QueryJob], source: str) -> list[QueryJob]:
    """The same jobs with confidences of another source.

    Args:
        source: ``router`` (as drawn), ``none``, or ``oracle`` (1 where the answer is right).
    """
    if source == "router":
        return list(jobs)
    return [
        QueryJob(
            replace(
                job.plan,
                confidence={m: job.query.correct[m] for m in job.plan.models}
                if source == "oracle"
                else {},
            ),
            job.query,
        )
        for job in jobs
    ]


def _make_calls(
    task: TaskSet, models: Sequence[str], query: AnsweredQuery, rng: random.Random
) -> list[Call]:
    candidates = tuple(ModelName(model) for model in models)
    prompt = SYSTEM_PROMPT_TOKENS + query.question_tokens
    calls = []
    for role, share in task.roles:
        by_model = {m: max(1, round(share * query.output_tokens[m])) for m in candidates}
        mean = round(sum(by_model.values()) / len(by_model))
        calls.append(
            Call(
                role=role,
                models=candidates,
                prompt_tokens=prompt,
                output_tokens=mean,
                noise=(rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)),
                output_by_model=by_model,
            )
        )
        prompt += mean
    return calls
