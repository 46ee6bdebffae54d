"""How much of the time that engines take to come up is hidden by workflow look-ahead.

Jobs of four calls to three models that take turns on one card; which model is next is likely, not
certain (`FOLLOWS`). Without look-ahead a node wakes a model when its stage is there. With it the
node is told at each dispatch what comes next: what usually did, where the job is an agent
(`learned`), or what the file says, where each call is a step with its model (`declared`). The
calls and their arrivals are the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from maestroctl.domain.ids import JobId, ModelName
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.workflow import StepSpec, WorkflowSpec
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
MEMORY_GB = (20, 32)
"""Of the card: one model at a time, any two of the three. With 40 nearly all fit and none waits."""
LOOK_AHEAD = ("none", "learned", "declared")
RATE = 0.01
JOBS = 200
PROMPT_TOKENS, OUTPUT_TOKENS = 600, 400
LAYOUTS = {"sleep": GPU_ABILITIES, "restart": RESTART}


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:  # noqa: ARG001
    """Every way for engines that sleep and for engines that are stopped."""
    experiment = Experiment(
        "prewarm",
        "Start-up time hidden by workflow look-ahead",
        ("engines", "memory_gb", "look_ahead", "waited_s", "hidden", "latency_s"),
        Plot("memory_gb", "look_ahead", ("waited_s", "hidden"), facet="engines"),
        parameters={
            "models": MODELS,
            "calls per job": CALLS,
            "usual next model": FOLLOWS,
            "jobs per second": RATE,
            "jobs": scale.part(JOBS),
        },
        paper="no figure; prewarming is part of its residency (Algorithm 1)",
    )
    found = runner.grid(
        lambda cell, seed: _play(scale, *cell, seed),
        [(name, memory, ahead) for name in LAYOUTS for memory in MEMORY_GB for ahead in LOOK_AHEAD],
        scale.runs(max(3, scale.seeds)),
    )
    for (name, memory_gb, ahead), figures in found.items():
        pairs = zip(figures, found[name, memory_gb, "none"], strict=True)
        row: dict[str, Any] = {
            "engines": name,
            "memory_gb": memory_gb,
            "look_ahead": ahead,
            "waited_s": estimate([waited_s for waited_s, _ in figures]),
            "hidden": estimate([1 - a[0] / b[0] if b[0] else 0.0 for a, b in pairs]),
            "latency_s": estimate([latency_s for _, latency_s in figures]),
        }
        experiment.rows.append(row)
    experiment.headline = {
        "hidden": {
            f"{r['engines']}, {r['memory_gb']} GB, {r['look_ahead']}": r["hidden"]
            for r in experiment.rows
            if r["look_ahead"] != "none"
        }
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
        policy=PolicySpec(
            ordering="fcfs",
            residency="lru",
            look_ahead="none" if look_ahead == "none" else "workflow",
        ),
        abilities=LAYOUTS[layout],
    )
    costs = {p.model: p for p in profiles}
    make_job = _declared_job if look_ahead == "declared" else agent_job
    result = world.run([make_job(*job) for job in _draw_jobs(scale.part(JOBS), seed)])
    waited = 0.0
    for row in result.stages:
        if row.first_byte_at is not None and row.dispatched_at is not None:
            prefill_s = costs[ModelName(row.model)].iteration.cp_s * PROMPT_TOKENS
            waited += max(0.0, row.first_byte_at - row.dispatched_at - prefill_s)
    return waited / len(result.jobs), mean_latency_s(result)


def _draw_jobs(num: int, seed: int) -> list[tuple[str, float, list[Call]]]:
    """Name, arrival and calls of each job."""
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
        jobs.append((f"p{number:04d}", at_s, calls))
    return jobs


def _declared_job(name: str, arrival_s: float, calls: Sequence[Call]) -> JobPlan:
    """The same calls as steps of a workflow, each with its model."""
    steps: dict[str, StepSpec] = {}
    for number, call in enumerate(calls, start=1):
        step = f"s{number}"
        steps[step] = StepSpec(step, "", call.role, models=call.models, after=tuple(steps)[-1:])
    return JobPlan(
        JobId(name),
        WorkflowSpec("declared", steps),
        ServiceClass.INTERACTIVE,
        arrival_s,
        {(step, 1, 0): [call] for step, call in zip(steps, calls, strict=True)},
    )
