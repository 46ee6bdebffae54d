"""Memory pressure: what it costs users when a card's memory shrinks and comes back.

Four models share one card of 40 GB. Somebody else takes memory from it in steps and gives it back,
over and over: once so that idle engines suffice (`mild`), once so that busy ones must give way
(`deep`: more load, less memory, faster, and less patience with engines that drain). The latter was
chosen on which levels of Algorithm 2 occur, 4 and 5 among them, not on who comes out best.

The disruption is the time that jobs take longer than the same jobs without pressure, per job,
beside how often engines went to sleep, were stopped, suspended, and how many stages were sent back.
Algorithm 2 in both forms against eviction of everything idle, least recently used, and aborting
first.
"""

from __future__ import annotations

from statistics import fmean
from typing import NamedTuple

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
CV = 2.0


class Pressure(NamedTuple):
    """What is taken, and when.

    Attributes:
        rate_rps: jobs per second. `drain_wait_s`: the policy's own key.
    """

    rate_rps: float
    ramp_gb: tuple[int, ...]
    step_s: float
    drain_wait_s: float


PRESSURES = {
    "mild": Pressure(0.05, (40, 32, 24, 32), 120.0, PolicySpec().drain_wait_s),
    "deep": Pressure(1.0, (40, 16, 8, 16), 30.0, 2.0),
}
POLICIES = ("maestroctl", "maestro", "lru", "evict_all", "abort_first")
DEVICE = DeviceName("cuda:0")
JOBS = 300


def run(scale: Scale, source: JobSource, runner: Runner) -> Experiment:
    """Every policy under the same jobs and the same ramp, and without the ramp."""
    experiment = Experiment(
        "degradation",
        "What memory pressure costs, by degradation policy",
        (
            *("pressure", "policy", "disruption_s", "latency_s", "failed_share"),
            *("sleeps", "stops", "suspends", "sent_back"),
        ),
        Plot("policy", None, ("disruption_s", "failed_share"), facet="pressure"),
        parameters={
            "models": MODELS,
            "popularity": SHARES,
            "batch share": BATCH,
            "cv of gaps": CV,
            "pressures": {
                name: f"{p.rate_rps} jobs/s, memory {p.ramp_gb} GB in steps of {p.step_s:g} s,"
                f" engines drain for {p.drain_wait_s:g} s at most"
                for name, p in PRESSURES.items()
            },
            "jobs": scale.part(JOBS),
        },
        paper="Algorithm 2 frees the deficit with the least impact; no figure is given",
    )
    seeds = scale.runs(max(3, scale.seeds))
    cells = [
        (pressure, *cell)
        for pressure in PRESSURES
        for cell in (("maestroctl", False), *((policy, True) for policy in POLICIES))
    ]
    figures = runner.grid(lambda cell, seed: _play(scale, source, *cell, seed), cells, seeds)
    experiment.headline = {"disruption_s": {}, "saved_s_against": {}}
    for pressure in PRESSURES:
        calm = [run["latency_s"] for run in figures[pressure, "maestroctl", False]]
        lost: dict[str, list[float]] = {}
        for policy in POLICIES:
            runs = figures[pressure, policy, True]
            lost[policy] = [run["latency_s"] - rest for run, rest in zip(runs, calm, strict=True)]
            experiment.rows.append(
                {
                    "pressure": pressure,
                    "policy": policy,
                    "disruption_s": estimate(lost[policy]),
                    **{key: estimate([run[key] for run in runs]) for key in runs[0]},
                }
            )
        experiment.headline["disruption_s"][pressure] = {
            policy: estimate(values) for policy, values in lost.items()
        }
        experiment.headline["saved_s_against"][pressure] = {
            policy: paired(lost[policy], lost["maestroctl"]) for policy in POLICIES[1:]
        }
    experiment.notes.append(
        "`suspends` is level 4, `sent_back` counts the stages of level 5. Disruption: mean seconds"
        " per job above the same jobs without pressure; jobs that failed"
        " count with the time until they did, and their share is a column of its own."
    )
    return experiment


def _play(
    scale: Scale, source: JobSource, pressure: str, policy: str, pressed: bool, seed: int
) -> dict[str, float]:
    at = PRESSURES[pressure]
    profiles = [qwen3_profile(name, length=4096, kv_bytes=KV_BYTES) for name in MODELS]
    world = make_cards(
        profiles,
        policy=PolicySpec(
            ordering="fcfs", residency="lru", degradation=policy, drain_wait_s=at.drain_wait_s
        ),
    )
    workload = WorkloadSpec(
        scale.part(JOBS),
        popular(MODELS, SHARES, BATCH),
        ArrivalSpec("bursty", at.rate_rps, CV),
        seed=seed,
    )
    plans = make_plans(workload, source, {p.model: p for p in profiles})
    if pressed:
        _press(world, at, 0, plans[-1].arrival_s + at.step_s)
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


def _press(world: World, at: Pressure, step: int, until_s: float) -> None:
    """The next step of the ramp, and a timer for the one after; at the end all memory is back."""
    over = world.loop.now_s >= until_s
    budget = A100_BYTES if over else at.ramp_gb[step % len(at.ramp_gb)] * GB
    for node in world.nodes.values():
        node.post(MemoryRead({DEVICE: budget}))
    if not over:
        world.loop.after(at.step_s, _press, world, at, step + 1, until_s)
