"""Memory pressure: what it costs users when a card's memory shrinks and comes back.

Four models share one card of 40 GB. Somebody else takes memory from it in steps and gives it back
(`RAMP`), over and over. The disruption is the time that jobs take longer than the same jobs
without pressure, per job, beside how often engines went to sleep, were stopped, suspended, and how
many stages were sent back. Algorithm 2 in both forms against eviction of everything idle, least
recently used, and aborting first.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from maestroctl.domain.ids import DeviceName
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.policy import PolicySpec
from maestroctl.experiments.harness import Experiment, Plot, Runner, Scale, estimate, paired
from maestroctl.experiments.setup import A100_BYTES, GB, qwen3_profile
from maestroctl.experiments.shared_cards import make_cards, mean_latency_s, popular
from maestroctl.scheduler.events import MemoryRead
from maestroctl.sim.workload import ArrivalSpec, JobSource, WorkloadSpec, make_plans
from maestroctl.sim.world import World

MODELS = ("qwen3-8b", "qwen3-4b", "qwen3-1.7b", "qwen3-0.6b")
SHARES = (0.3, 0.3, 0.2, 0.2)
BATCH = 0.5
"""Part of each model's jobs that nobody waits for."""
KV_BYTES = 2 * GB
RATE, CV = 0.05, 2.0
RAMP_GB = (40, 32, 24, 32)
STEP_S = 120.0
POLICIES = ("maestroctl", "maestro", "lru", "evict_all", "abort_first")
DEVICE = DeviceName("cuda:0")
JOBS = 300


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Every policy under the same jobs and the same ramp, and without the ramp."""
    experiment = Experiment(
        "degradation",
        "What memory pressure costs, by degradation policy",
        (
            *("policy", "disruption_s", "latency_s", "failed_share"),
            *("sleeps", "stops", "suspends", "sent_back"),
        ),
        Plot("policy", None, ("disruption_s", "failed_share")),
        parameters={
            "models": MODELS,
            "popularity": SHARES,
            "batch share": BATCH,
            "jobs per second": RATE,
            "cv of gaps": CV,
            "memory, GB, step by step": RAMP_GB,
            "seconds per step": STEP_S,
            "jobs": scale.part(JOBS),
        },
        paper="Algorithm 2 frees the deficit with the least impact; no figure is given",
    )
    seeds = scale.runs(max(3, scale.seeds))
    cells = [("maestroctl", False), *((policy, True) for policy in POLICIES)]
    figures = runner.grid(lambda cell, seed: _play(scale, source, *cell, seed), cells, seeds)
    calm = figures.pop(("maestroctl", False))
    disruption: dict[str, list[float]] = {}
    for (policy, _), runs in figures.items():
        row: dict[str, Any] = {"policy": policy}
        pairs = zip(runs, calm, strict=True)
        disruption[policy] = [run["latency_s"] - rest["latency_s"] for run, rest in pairs]
        row["disruption_s"] = estimate(disruption[policy])
        for name in experiment.columns[2:]:
            row[name] = estimate([run[name] for run in runs])
        experiment.rows.append(row)
    experiment.headline = {
        "disruption_s": {name: estimate(values) for name, values in disruption.items()},
        "saved_s_against": {
            name: paired(disruption[name], disruption["maestroctl"]) for name in POLICIES[1:]
        },
    }
    experiment.notes.append(
        "Disruption: mean seconds per job above the same jobs without pressure; jobs that failed"
        " count with the time until they did, and their share is a column of its own."
    )
    return experiment


def _play(
    scale: Scale, source: JobSource, policy: str, pressed: bool, seed: int
) -> dict[str, float]:
    profiles = [qwen3_profile(name, length=4096, kv_bytes=KV_BYTES) for name in MODELS]
    world = make_cards(
        profiles, policy=PolicySpec(ordering="fcfs", residency="lru", degradation=policy)
    )
    workload = WorkloadSpec(
        scale.part(JOBS),
        popular(MODELS, SHARES, BATCH),
        ArrivalSpec("bursty", RATE, CV),
        seed=seed,
    )
    plans = make_plans(workload, source, {p.model: p for p in profiles})
    if pressed:
        _press(world, 0, plans[-1].arrival_s + STEP_S)
    result = world.run(plans)
    stats = next(iter(world.nodes.values())).core.stats
    return {
        "latency_s": mean_latency_s(result),
        "failed_share": fmean(job.status is not JobStatus.FINISHED for job in result.jobs),
        "sleeps": float(stats.sleeps),
        "stops": float(stats.stops),
        "suspends": float(stats.suspends),
        "sent_back": float(stats.aborted),
    }


def _press(world: World, step: int, until_s: float) -> None:
    """The next step of the ramp, and a timer for the one after; at the end all memory is back."""
    over = world.loop.now_s >= until_s
    budget = A100_BYTES if over else RAMP_GB[step % len(RAMP_GB)] * GB
    for node in world.nodes.values():
        node.post(MemoryRead({DEVICE: budget}))
    if not over:
        world.loop.after(STEP_S, _press, world, step + 1, until_s)
