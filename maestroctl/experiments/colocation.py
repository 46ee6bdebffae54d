"""Maestro Table IV: a Travel Assistant of six calls to three models on one, two and three cards.

Three ways to run it: engines that sleep and share cards (`maestroctl`), engines that can only be
stopped and started (`restart`, what QLM does), and one card per model (`exclusive`, three cards);
besides, ours without prewarming, with longer sequences, and with a fixed KV pool.
The jobs come one after the other on a fleet that has served each model before. Contention between
engines that are awake on one card is on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import JobId, ModelName, NodeName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.experiments.harness import Experiment, Runner, Scale
from maestroctl.experiments.setup import GB, make_fleet, qwen3_profile
from maestroctl.sim.jobs import Call, JobPlan, agent_calls, agent_workflow
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.workload import JobSource
from maestroctl.sim.world import GPU_ABILITIES, World, WorldSpec

MODELS = ("qwen3-14b", "qwen3-8b", "qwen3-4b")
CALLS = (*MODELS, *MODELS)
"""Model of each call: planner, flights, hotels, then again with what was found."""
OUTPUT_TOKENS = 1042
"""Of each call: then three exclusive cards take the paper's 82.4 s."""
PROMPT_TOKENS = 600
KV_BYTES = 2 * GB
JOBS = 10
_GAP_S = 600.0
LENGTH = 4096
"""Longest sequence of an engine, tokens; its KV floor holds one."""
RESTART = EngineAbilities()
ELASTIC = replace(GPU_ABILITIES, elastic_kv=True)
"""As in the paper: pages of KV are mapped on demand (kvcached), limits follow bookings."""
METHODS: Mapping[str, dict[str, Any]] = {
    "maestroctl": {"abilities": ELASTIC},
    "no prewarming": {"abilities": ELASTIC, "look_ahead": "none"},
    "long context": {"abilities": ELASTIC, "length": 8192},
    "fixed KV": {"abilities": GPU_ABILITIES},
    "restart": {"abilities": RESTART, "look_ahead": "none"},
}
PAPER = {
    ("maestroctl", 1): 92.4,
    ("maestroctl", 2): 84.9,
    ("maestroctl", 3): 82.4,
    ("restart", 1): 309.1,
    ("restart", 2): 139.1,
    ("restart", 3): 82.4,
}


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:  # noqa: ARG001
    """Both ways on one to three cards, and the exclusive reference."""
    experiment = Experiment(
        "colocation",
        "Travel Assistant on one to three cards (Maestro Table IV)",
        ("method", "cards", "completion_s", "against_exclusive", "paper_s", "activations"),
        parameters={
            "models": CALLS,
            "output tokens per call": OUTPUT_TOKENS,
            "prompt tokens": PROMPT_TOKENS,
            "longest sequence, tokens": LENGTH,
            "KV per engine at most, GB": KV_BYTES / GB,
            "jobs, one after the other": JOBS,
        },
        paper="92.4 s on one card against 82.4 s exclusive = 1.12 x; restart switching 3.75 x",
    )
    exclusive, _ = _play(3, RESTART, exclusive=True)
    for method, play in METHODS.items():
        for cards in (1, 2, 3):
            seconds, activations = _play(cards, **play)
            experiment.rows.append(_row(method, cards, seconds, exclusive, activations))
    experiment.rows.append(_row("exclusive", 3, exclusive, exclusive, 0.0))
    by_key = {(row["method"], row["cards"]): row["against_exclusive"] for row in experiment.rows}
    experiment.headline = {
        "one_card_against_exclusive": by_key["maestroctl", 1],
        "two_cards_against_exclusive": by_key["maestroctl", 2],
        "restart_one_card_against_exclusive": by_key["restart", 1],
        "one_card_without_prewarming": by_key["no prewarming", 1],
        "prewarming_share_of_switching": 1
        - (by_key["maestroctl", 1] - 1) / (by_key["no prewarming", 1] - 1),
    }
    experiment.notes += [
        f"Engines take sequences of up to {LENGTH} tokens (the calls need"
        f" {PROMPT_TOKENS + OUTPUT_TOKENS}), so the 14B and the 4B model fit on one card with the"
        " KV that their floors book, and the 14B model is woken while the 4B one still serves. With"
        " 8,192 (`long context`) they miss by 60 MB, and with a fixed KV pool of 2 GB by 1.2 GB.",
        "Prewarming learns what follows from the first job, which is not counted.",
    ]
    return experiment


def _row(
    method: str, cards: int, seconds: float, exclusive: float, activations: float
) -> dict[str, Any]:
    return {
        "method": method,
        "cards": cards,
        "completion_s": seconds,
        "against_exclusive": seconds / exclusive,
        "paper_s": PAPER.get((method, cards)),
        "activations": activations,
    }


def _play(
    cards: int,
    abilities: EngineAbilities,
    *,
    look_ahead: str = "workflow",
    length: int = LENGTH,
    exclusive: bool = False,
) -> tuple[float, float]:
    """(mean seconds of a job, starts and wakes per job), the first job left out."""
    profiles = [qwen3_profile(name, length=length, kv_bytes=KV_BYTES) for name in MODELS]
    policy = PolicySpec(look_ahead=look_ahead)
    fleet = make_fleet(profiles, 3 if exclusive else 1, policy)
    if exclusive:
        fleet = _one_model_each(fleet, profiles)
    spec = WorldSpec(
        fleet,
        {p.model: p for p in profiles},
        NetworkSpec(snapshot_every_s=None),
        abilities,
        num_devices=1 if exclusive else cards,
    )
    world = World(spec)
    result = world.run([_job(number) for number in range(JOBS + 1)])
    counted = [job for job in result.jobs if job.job_id != _job(0).job_id]
    seconds = fmean((job.finished_at or 0.0) - job.submitted_at for job in counted)
    activations = sum(bool(row.activation) for row in result.stages if row.job_id != _job(0).job_id)
    return seconds, activations / len(counted)


def _one_model_each(fleet: FleetSpec, profiles: Sequence[ModelProfile]) -> FleetSpec:
    nodes = {
        name: replace(node, models=(profile.model,))
        for (name, node), profile in zip(fleet.nodes.items(), profiles, strict=True)
    }
    return replace(fleet, nodes={NodeName(name): node for name, node in nodes.items()})


def _job(number: int) -> JobPlan:
    calls = [Call("agent", (ModelName(m),), PROMPT_TOKENS, OUTPUT_TOKENS) for m in CALLS]
    return JobPlan(
        JobId(f"trip{number:03d}"),
        agent_workflow("travel"),
        ServiceClass.INTERACTIVE,
        _GAP_S * number,
        agent_calls(calls),
    )
