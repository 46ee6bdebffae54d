"""What `bench-parity` says: errors of the simulator against the live side, and its spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from maestroctl.telemetry.metrics import quantile
from maestroctl.testing.bench.report import Row, Section

MEAN_TARGET, P95_TARGET = 0.15, 0.25


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both sides; latencies of the jobs in seconds, in order of arrival.

    Attributes:
        live: one list per repeat.
        check_error: median error of the profile's own check.
        decisions_equal: None = could not be told; the note says why, or of how many events.
        others_cores: cores that the rest of the machine used; None = nothing was run anew.
    """

    live: Sequence[Sequence[float]]
    simulated: Sequence[float]
    check_error: float | None
    decisions_equal: bool | None
    decisions_note: str
    others_cores: float | None
    rate_rps: float

    @property
    def live_means(self) -> list[float]:
        """Mean latency of each repeat."""
        return [fmean(latencies) for latencies in self.live]

    @property
    def live_p95s(self) -> list[float]:
        """0.95 quantile of each repeat."""
        return [_p95(latencies) for latencies in self.live]

    @property
    def mean_error(self) -> float:
        """|simulated - live| / live of the mean latency."""
        return _error(fmean(self.simulated), fmean(self.live_means))

    @property
    def p95_error(self) -> float:
        """The same of the 0.95 quantile."""
        return _error(_p95(self.simulated), fmean(self.live_p95s))

    @property
    def p95_in_spread(self) -> bool:
        """The simulated quantile lies among those of the repeats."""
        return min(self.live_p95s) <= _p95(self.simulated) <= max(self.live_p95s)

    @property
    def p95_spread(self) -> float:
        """Half the range of the live quantile over the repeats, as a share of its mean."""
        return _spread(self.live_p95s)

    @property
    def mean_spread(self) -> float:
        """Half the range of the live mean over the repeats, as a share of itself."""
        return _spread(self.live_means)


def make_sections(outcome: Outcome) -> list[Section]:
    """The table."""
    means, p95s = outcome.live_means, outcome.live_p95s
    jobs, repeats = len(outcome.simulated), len(outcome.live)
    p95_met = outcome.p95_error <= P95_TARGET or outcome.p95_in_spread
    equal = outcome.decisions_equal
    words = {True: "equal", False: "DIFFERENT", None: "not compared"}
    check, others = outcome.check_error, outcome.others_cores
    rows = (
        Row("jobs", f"{jobs} at {outcome.rate_rps:.2f} a second, {repeats} live repeats"),
        Row("mean, live", f"{fmean(means):.3f} s ({min(means):.3f} to {max(means):.3f})"),
        Row("mean, simulated", f"{fmean(outcome.simulated):.3f} s"),
        Row(
            "error of the mean",
            f"{outcome.mean_error:.1%}",
            f"at most {MEAN_TARGET:.0%}",
            outcome.mean_error <= MEAN_TARGET,
        ),
        Row("p95, live", f"{fmean(p95s):.3f} s ({min(p95s):.3f} to {max(p95s):.3f})"),
        Row("p95, simulated", f"{_p95(outcome.simulated):.3f} s"),
        Row(
            "error of the p95",
            f"{outcome.p95_error:.1%}",
            f"at most {P95_TARGET:.0%}, or within the live repeats",
            p95_met,
        ),
        Row(
            "decisions, given equal events",
            f"{words[equal]} ({outcome.decisions_note})",
            "equal",
            equal,
        ),
        Row("profile's own check", "-" if check is None else f"median error {check:.1%}"),
        Row("used by others", "-" if others is None else f"{others:.2f} cores"),
    )
    return [Section("job latency", rows)]


def make_figures(outcome: Outcome) -> dict[str, Any]:
    """The line of JSON."""
    return {
        "mean_latency_error": outcome.mean_error,
        "p95_latency_error": outcome.p95_error,
        "p95_within_live_spread": outcome.p95_in_spread,
        "decisions_equal": outcome.decisions_equal,
        "jobs": len(outcome.simulated),
        "repeats": len(outcome.live),
        "rate_rps": outcome.rate_rps,
        "live": {
            "mean_s": outcome.live_means,
            "p95_s": outcome.live_p95s,
            "mean_spread": outcome.mean_spread,
            "p95_spread": outcome.p95_spread,
        },
        "simulated": {"mean_s": fmean(outcome.simulated), "p95_s": _p95(outcome.simulated)},
        "profile_median_error": outcome.check_error,
        "others_cores": outcome.others_cores,
    }


def _p95(latencies: Sequence[float]) -> float:
    found = quantile(latencies, 0.95)
    assert found is not None, "there are jobs"
    return found


def _error(simulated: float, live: float) -> float:
    return abs(simulated - live) / live


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / 2 / fmean(values)
