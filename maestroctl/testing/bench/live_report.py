"""From the latencies of `bench-live` to its table and its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from maestroctl.domain.stage import ServiceClass
from maestroctl.testing.bench.live_trace import Costs, LiveJob
from maestroctl.testing.bench.report import Row, Section
from maestroctl.testing.bench.stats import Spread, percentile, spread

BASELINE = "fcfs"
OURS = ("workflow_srtf", "workflow_slo")
HEADLINE = "workflow_slo"

Latencies = Mapping[str, float]
"""Job -> seconds, of one run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was measured.

    Attributes:
        live: policy -> latencies of each repeat.
        simulated: policy -> latencies.
        deadlines: job -> seconds; `factor` times its idle time.
    """

    jobs: Sequence[LiveJob]
    costs: Costs
    factor: float
    deadlines: Mapping[str, float]
    live: Mapping[str, Sequence[Latencies]]
    simulated: Mapping[str, Latencies]
    others_cores: float | None = None


def fix_factor(jobs: Sequence[LiveJob], costs: Costs, baseline: Latencies) -> float:
    """The deadline factor at which the baseline's first run meets half of all deadlines."""
    return percentile([baseline[job.name] / job.idle_s(costs) for job in jobs], 50)


def slo_attainment(jobs: Sequence[LiveJob], deadlines: Latencies, run: Latencies) -> float:
    """Share of jobs that ended within their deadline."""
    return sum(run[job.name] <= deadlines[job.name] for job in jobs) / len(jobs)


def mean_interactive_s(jobs: Sequence[LiveJob], run: Latencies) -> float:
    """Mean latency of interactive jobs."""
    picked = [run[j.name] for j in jobs if j.service_class is ServiceClass.INTERACTIVE]
    return sum(picked) / len(picked)


def _slo(outcome: Outcome, policy: str) -> Spread:
    runs = outcome.live[policy]
    return spread([slo_attainment(outcome.jobs, outcome.deadlines, run) for run in runs])


def _interactive(outcome: Outcome, policy: str) -> Spread:
    return spread([mean_interactive_s(outcome.jobs, run) for run in outcome.live[policy]])


def _gains(outcome: Outcome, policy: str) -> Spread:
    """Percentage points of attainment over the baseline, repeat by repeat."""
    pairs = zip(outcome.live[policy], outcome.live[BASELINE], strict=True)
    attained = [
        [slo_attainment(outcome.jobs, outcome.deadlines, run) for run in pair] for pair in pairs
    ]
    return spread([100 * (ours - theirs) for ours, theirs in attained])


def _ratios(outcome: Outcome, policy: str) -> Spread:
    pairs = zip(outcome.live[policy], outcome.live[BASELINE], strict=True)
    means = [[mean_interactive_s(outcome.jobs, run) for run in pair] for pair in pairs]
    return spread([ours / theirs for ours, theirs in means])


def _simulated_gain(outcome: Outcome, policy: str) -> float:
    ours, theirs = (
        slo_attainment(outcome.jobs, outcome.deadlines, outcome.simulated[name])
        for name in (policy, BASELINE)
    )
    return 100 * (ours - theirs)


def make_figures(outcome: Outcome) -> dict[str, Any]:
    """Every figure by name."""
    gain, ratio = _gains(outcome, HEADLINE), _ratios(outcome, HEADLINE)
    simulated = _simulated_gain(outcome, HEADLINE)
    return {
        "slo_gain_over_fcfs_pp": gain.median,
        "slo_gain_spread_pp": gain.as_dict(),
        "interactive_latency_ratio": ratio.as_dict(),
        "simulated_slo_gain_over_fcfs_pp": simulated,
        "same_sign_as_simulated": (gain.median > 0) == (simulated > 0),
        "ahead_beyond_spread": gain.low > 0 and ratio.high < 1,
        "deadline_factor": outcome.factor,
        "jobs": len(outcome.jobs),
        "repeats": len(outcome.live[BASELINE]),
        "policies": {
            name: {
                "slo": _slo(outcome, name).as_dict(),
                "interactive_s": _interactive(outcome, name).as_dict(),
                "gain_pp": _gains(outcome, name).as_dict(),
                "simulated_gain_pp": _simulated_gain(outcome, name),
                "simulated_slo": slo_attainment(
                    outcome.jobs, outcome.deadlines, outcome.simulated[name]
                ),
                "simulated_interactive_s": mean_interactive_s(
                    outcome.jobs, outcome.simulated[name]
                ),
            }
            for name in outcome.live
        },
        "others_cores": outcome.others_cores,
    }


def make_sections(outcome: Outcome) -> list[Section]:
    """The table."""
    rows = [
        Row(
            name,
            f"{_slo(outcome, name):.1%} in time, interactive {_interactive(outcome, name):.1f} s",
        )
        for name in outcome.live
    ]
    simulated = [
        Row(
            name,
            f"{slo_attainment(outcome.jobs, outcome.deadlines, run):.1%} in time, interactive"
            f" {mean_interactive_s(outcome.jobs, run):.1f} s",
        )
        for name, run in outcome.simulated.items()
    ]
    gain, ratio = _gains(outcome, HEADLINE), _ratios(outcome, HEADLINE)
    same = (gain.median > 0) == (_simulated_gain(outcome, HEADLINE) > 0)
    verdicts = (
        Row(f"{HEADLINE} over {BASELINE}", f"{gain:+.1f} pp", "> 0, every repeat", gain.low > 0),
        Row("interactive latency ratio", f"{ratio:.2f}", "< 1, every repeat", ratio.high < 1),
        Row("sign as simulated", "yes" if same else "no", "yes", same),
    )
    return [
        Section("Live", tuple(rows)),
        Section("Simulated", tuple(simulated)),
        Section("Against what people run today", verdicts),
    ]


def make_notes(outcome: Outcome) -> list[str]:
    """What has to be said below the table."""
    costs = outcome.costs
    return [
        f"{len(outcome.jobs)} jobs, {len(outcome.live[BASELINE])} repeats, median (lowest to"
        f" highest). A deadline is {outcome.factor:.1f} times the job's own idle time: the factor"
        f" at which the first {BASELINE} run meets half of them. A token took"
        f" {1000 * costs.token_s:.0f} ms alone, {1000 * costs.batch_token_s:.0f} ms at batch"
        f" {costs.batch}; a switch of models {costs.switch_s:.1f} s. Output lengths are forced by"
        " max_tokens, so every policy knows the length of a stage, not of a job."
    ]
