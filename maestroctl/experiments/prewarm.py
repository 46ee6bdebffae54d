"""How much of the time that engines take to come up is hidden by workflow look-ahead.

Jobs of four calls to three models that take turns on one card; which model is next is likely, not
certain (`FOLLOWS`). With look-ahead the node is told at each dispatch what is likely next; without,
it wakes a model when its stage is there. Same jobs, same arrivals.
"""

from __future__ import annotations

import random
from typing import Any

from maestroctl.domain.ids import ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.experiments.harness import Experiment, Plot, Runner, Scale, estimate
from maestroctl.experiments.setup import GB, qwen3_profile
from maestroctl.experiments.shared_cards import RESTART, agent_job, make_cards, mean_latency_s
from maestroctl.sim.jobs import Call, JobPlan
from maestroctl.sim.workload import JobSource
from maestroctl.sim.world import GPU_ABILITIES

MODELS = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b")
CALLS = 4
FOLLOWS = 0.8
"""Chance that a call goes to the usual next model; else to another one."""
MEMORY_GB = (20, 32, 40)
"""Of the card: one model at a time, any two of the three, nearly all."""
RATE = 0.01
JOBS = 200
PROMPT_TOKENS, OUTPUT_TOKENS = 600, 400
LAYOUTS = {"sleep": GPU_ABILITIES, "restart": RESTART}


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:  # noqa: ARG001
    """With and without, for engines that sleep and for engines that are stopped."""
    experiment = Experiment(
        "prewarm",
        "Start-up time hidden by workflow look-ahead",
        ("engines", "memory_gb", "waited_s", "waited_ahead_s", "hidden", "latency_s", "ahead_s"),
        Plot("memory_gb", "engines", ("waited_s", "waited_ahead_s", "hidden")),
        parameters={
            "models": MODELS,
            "calls per job": CALLS,
            "usual next model": FOLLOWS,
            "jobs per second": RATE,
            "jobs": min(JOBS, scale.jobs),
        },
        paper="no figure; prewarming is part of its residency (Algorithm 1)",
    )
    seeds = scale.runs(max(3, scale.seeds))
    layouts = [(name, memory_gb) for name in LAYOUTS for memory_gb in MEMORY_GB]
    found = runner.grid(
        lambda cell, seed: _play(scale, *cell, seed),
        [(*layout, look_ahead) for layout in layouts for look_ahead in ("none", "workflow")],
        seeds,
    )
    for name, memory_gb in layouts:
        plain, ahead = found[name, memory_gb, "none"], found[name, memory_gb, "workflow"]
        pairs = zip(plain, ahead, strict=True)
        row: dict[str, Any] = {
            "engines": name,
            "memory_gb": memory_gb,
            "waited_s": estimate([a for a, _ in plain]),
            "waited_ahead_s": estimate([a for a, _ in ahead]),
            "hidden": estimate([1 - b[0] / a[0] if a[0] else 0.0 for a, b in pairs]),
            "latency_s": estimate([a for _, a in plain]),
            "ahead_s": estimate([a for _, a in ahead]),
        }
        experiment.rows.append(row)
    experiment.headline = {
        "hidden": {f"{r['engines']}, {r['memory_gb']} GB": r["hidden"] for r in experiment.rows}
    }
    experiment.notes.append(
        "Waited: seconds per job between the dispatch of a stage and its first token, less what"
        " its prefill takes on an engine that is up."
    )
    return experiment


def _play(
    scale: Scale, layout: str, memory_gb: int, look_ahead: str, seed: int
) -> tuple[float, float]:
    """(seconds waited for engines per job, mean latency)."""
    profiles = [qwen3_profile(name, length=4096, kv_bytes=2 * GB) for name in MODELS]
    world = make_cards(
        profiles,
        memory_bytes=memory_gb * GB,
        policy=PolicySpec(look_ahead=look_ahead),
        abilities=LAYOUTS[layout],
    )
    costs = {p.model: p for p in profiles}
    result = world.run(_make_jobs(min(JOBS, scale.jobs), seed))
    waited = 0.0
    for row in result.stages:
        if row.first_byte_at is not None and row.dispatched_at is not None:
            prefill_s = costs[ModelName(row.model)].iteration.cp_s * PROMPT_TOKENS
            waited += max(0.0, row.first_byte_at - row.dispatched_at - prefill_s)
    return waited / len(result.jobs), mean_latency_s(result)


def _make_jobs(num: int, seed: int) -> list[JobPlan]:
    rng = random.Random(f"prewarm/{seed}")
    jobs, at_s = [], 0.0
    for number in range(num):
        at_s += rng.expovariate(RATE)
        model = 0
        calls = []
        for _ in range(CALLS):
            tokens = max(20, round(OUTPUT_TOKENS * rng.lognormvariate(0.0, 0.5)))
            calls.append(Call("agent", (ModelName(MODELS[model]),), PROMPT_TOKENS, tokens))
            step = 1 if rng.random() < FOLLOWS else 2
            model = (model + step) % len(MODELS)
        jobs.append(agent_job(f"p{number:04d}", at_s, calls))
    return jobs
