"""From what the residency benchmark saw to its table and its figures. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from maestroctl.domain.units import GIB
from maestroctl.testing.bench.report import Row, Section
from maestroctl.testing.bench.stats import Spread, spread

LEAST_COLD_OVER_WAKE = 10.0
SAME_MEMORY = 0.05
"""Target: memory after all cycles is that of before within this share."""
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        cold_starts: the last of them is the engine that sleeps and wakes.
        cycles: of sleep and wake.
        tokens: of the greedy text that is compared.
        kv_bytes: KV cache of the engine.
    """

    cold_starts: int = 5
    cycles: int = 20
    tokens: int = 32
    kv_bytes: int = GIB

    @classmethod
    def quick(cls) -> Plan:
        """Enough to see that everything works; no figures to quote."""
        return cls(cold_starts=1, cycles=3, tokens=16)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One sleep and the wake after it. Bytes are the PSS of the process group."""

    sleep_s: float
    wake_s: float
    asleep_bytes: int
    awake_bytes: int
    same_text: bool


@dataclass(slots=True)
class Seen:
    """Everything that one run saw. Bytes are the PSS of the process group."""

    plan: Plan
    load_average: tuple[float, float] = (0.0, 0.0)  # over one minute, at begin and end
    cold_s: list[float] = field(default_factory=list)
    cycles: list[Cycle] = field(default_factory=list)
    text: str = ""  # greedy, before the first sleep
    before_bytes: int = 0
    after_bytes: int = 0
    others_cores: float = 0.0  # kept busy by others while it slept and woke

    @property
    def same_texts(self) -> int:
        """Wakes after which the greedy text was the same."""
        return sum(cycle.same_text for cycle in self.cycles)

    @property
    def memory_change(self) -> float:
        """Change of memory over all cycles, as a share."""
        return (self.after_bytes - self.before_bytes) / self.before_bytes

    @property
    def cold_over_wake(self) -> float:
        """How many times faster a wake is than a cold start, medians."""
        return self.cold.median / self.wake.median

    @property
    def least_cold_over_wake(self) -> float:
        """The same with the fastest cold start and the slowest wake."""
        return self.cold.low / self.wake.high

    @property
    def cold(self) -> Spread:
        """Seconds of a cold start."""
        return spread(self.cold_s)

    @property
    def wake(self) -> Spread:
        """Seconds of a wake."""
        return spread([cycle.wake_s for cycle in self.cycles])

    @property
    def sleep(self) -> Spread:
        """Seconds of falling asleep."""
        return spread([cycle.sleep_s for cycle in self.cycles])

    @property
    def asleep_mb(self) -> Spread:
        """Megabytes held while asleep."""
        return spread([cycle.asleep_bytes / _MB for cycle in self.cycles])


def make_sections(seen: Seen) -> list[Section]:
    """The table."""
    total = len(seen.cycles)
    times = [
        Row(f"cold start ({len(seen.cold_s)} times)", f"{seen.cold:.1f} s"),
        Row("sleep", f"{seen.sleep:.2f} s"),
        Row("wake", f"{seen.wake:.2f} s"),
        Row(
            "cold start / wake",
            f"{seen.cold_over_wake:.1f} x",
            f">= {LEAST_COLD_OVER_WAKE:g} x",
            seen.cold_over_wake >= LEAST_COLD_OVER_WAKE,
        ),
        Row("fastest cold start / slowest wake", f"{seen.least_cold_over_wake:.1f} x"),
    ]
    memory = [
        Row("before the first sleep", f"{seen.before_bytes / _MB:,.0f} MB"),
        Row("asleep", f"{seen.asleep_mb:,.0f} MB"),
        Row(
            f"after {total} cycles",
            f"{seen.after_bytes / _MB:,.0f} MB, {seen.memory_change:+.1%}",
            f"+- {SAME_MEMORY:.0%}",
            abs(seen.memory_change) <= SAME_MEMORY,
        ),
    ]
    answers = [
        Row(
            "same greedy text after a wake",
            f"{seen.same_texts} of {total} times, {seen.plan.tokens} tokens",
            "always",
            seen.same_texts == total,
        )
    ]
    return [
        Section("Time, first token included", tuple(times)),
        Section("Memory of the engine's process group (PSS)", tuple(memory)),
        Section("Answers", tuple(answers)),
    ]


def make_figures(seen: Seen) -> dict[str, Any]:
    """Every figure by name."""
    return {
        "cold_over_wake": seen.cold_over_wake,
        "least_cold_over_wake": seen.least_cold_over_wake,
        "cold_start_s": {**seen.cold.as_dict(), "each": seen.cold_s},
        "sleep_s": seen.sleep.as_dict(),
        "wake_s": seen.wake.as_dict(),
        "cycles": len(seen.cycles),
        "same_text": seen.same_texts,
        "tokens_compared": seen.plan.tokens,
        "pss_before_mb": seen.before_bytes / _MB,
        "pss_after_mb": seen.after_bytes / _MB,
        "pss_change": seen.memory_change,
        "pss_asleep_mb": seen.asleep_mb.as_dict(),
        "pss_awake_each_mb": [cycle.awake_bytes / _MB for cycle in seen.cycles],
        "kv_mb": seen.plan.kv_bytes / _MB,
        "machine": {
            "cores": os.cpu_count(),
            "others_cores": seen.others_cores,
            "load_average": list(seen.load_average),
        },
    }


def make_notes(seen: Seen) -> list[str]:
    """What has to be said below the table."""
    return [
        "Figures are the median (lowest to highest). Files were in the page cache from the second"
        f" cold start on. Other programs kept {seen.others_cores:.2f} of {os.cpu_count()} cores"
        f" busy during the cycles; load average {seen.load_average[0]:.1f} at the begin,"
        f" {seen.load_average[1]:.1f} at the end."
    ]
