"""Maestro Table IV: a Travel Assistant of six calls to three models on one, two and three cards.

Three ways to run it: engines that sleep and share cards (`maestroctl`), engines that can only be
stopped and started (`restart`, what QLM does), and one card per model (`exclusive`, three cards);
besides, ours without prewarming, with longer sequences, and with a fixed KV pool.
The jobs come one after the other on a fleet that has served each model before. Contention between
engines that are awake on one card is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.policy import PolicySpec
from maestroctl.experiments.harness import Experiment, Plot, Runner, Scale
from maestroctl.experiments.setup import GB, qwen3_profile
from maestroctl.experiments.shared_cards import (
    RESTART,
    agent_job,
    make_cards,
    make_exclusive,
    mean_latency_s,
)
from maestroctl.sim.jobs import Call, JobPlan
from maestroctl.sim.workload import JobSource
from maestroctl.sim.world import GPU_ABILITIES, World

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
    jobs = scale.part(JOBS)
    experiment = Experiment(
        "colocation",
        "Travel Assistant on one to three cards (Maestro Table IV)",
        ("method", "cards", "completion_s", "against_exclusive", "paper_s", "activations"),
        Plot("cards", "method", ("completion_s",)),
        parameters={
            "models": CALLS,
            "output tokens per call": OUTPUT_TOKENS,
            "prompt tokens": PROMPT_TOKENS,
            "longest sequence, tokens": LENGTH,
            "KV per engine at most, GB": KV_BYTES / GB,
            "jobs, one after the other": jobs,
        },
        paper="92.4 s on one card against 82.4 s exclusive = 1.12 x; restart switching 3.75 x",
    )
    exclusive, _ = _judge(make_exclusive(_profiles(LENGTH)), jobs)
    for method, play in METHODS.items():
        for cards in (1, 2, 3):
            seconds, activations = _play(cards, jobs, **play)
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
    jobs: int,
    abilities: EngineAbilities,
    *,
    look_ahead: str = "workflow",
    length: int = LENGTH,
) -> tuple[float, float]:
    policy = PolicySpec(ordering="fcfs", residency="lru", look_ahead=look_ahead)
    world = make_cards(_profiles(length), num_devices=cards, policy=policy, abilities=abilities)
    return _judge(world, jobs)


def _judge(world: World, jobs: int) -> tuple[float, float]:
    """(mean seconds of a job, starts and wakes per job), the first job left out."""
    trips = [_trip(number) for number in range(jobs + 1)]
    result = world.run(trips)
    first = trips[0].job_id
    counted = [job for job in result.jobs if job.job_id != first]
    activations = sum(bool(row.activation) for row in result.stages if row.job_id != first)
    return mean_latency_s(result, counted), activations / len(counted)


def _profiles(length: int) -> list[ModelProfile]:
    return [qwen3_profile(name, length=length, kv_bytes=KV_BYTES) for name in MODELS]


def _trip(number: int) -> JobPlan:
    calls = [Call("agent", (ModelName(m),), PROMPT_TOKENS, OUTPUT_TOKENS) for m in CALLS]
    return agent_job(f"trip{number:03d}", _GAP_S * number, calls)
