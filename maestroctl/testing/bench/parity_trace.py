"""The jobs of `bench-parity`: few short calls each, all lengths given, the same for both sides."""

from __future__ import annotations

import random
from dataclasses import dataclass

from maestroctl.domain.llm import ModelProfile

SHORTEST_PROMPT, LONGEST_PROMPT = 8, 48
SHORTEST_OUTPUT, LONGEST_OUTPUT = 8, 32
FEWEST_CALLS, MOST_CALLS = 2, 4


@dataclass(frozen=True, slots=True)
class ParityJob:
    """One job: calls one after the other.

    Attributes:
        arrival_s: from the start of a repeat.
        calls: (prompt tokens, output tokens) each.
    """

    arrival_s: float
    calls: tuple[tuple[int, int], ...]


def make_trace(jobs: int, rate_rps: float, seed: int) -> list[ParityJob]:
    """Poisson arrivals at `rate_rps` jobs a second."""
    rng = random.Random(seed)
    trace, now_s = [], 0.0
    for _ in range(jobs):
        now_s += rng.expovariate(rate_rps)
        calls = tuple(
            (
                rng.randint(SHORTEST_PROMPT, LONGEST_PROMPT),
                rng.randint(SHORTEST_OUTPUT, LONGEST_OUTPUT),
            )
            for _ in range(rng.randint(FEWEST_CALLS, MOST_CALLS))
        )
        trace.append(ParityJob(now_s, calls))
    return trace


def capacity_rps(profile: ModelProfile) -> float:
    """Jobs a second that keep an engine busy at its largest batch, by its profile."""
    cost, batch = profile.iteration, profile.max_batch
    prompt = (SHORTEST_PROMPT + LONGEST_PROMPT) / 2
    output = (SHORTEST_OUTPUT + LONGEST_OUTPUT) / 2
    token_s = cost.c0_s / batch + cost.c1_s + cost.c2_s * (prompt + output / 2)
    call_s = cost.cp_s * prompt + output * token_s
    return 1.0 / (call_s * (FEWEST_CALLS + MOST_CALLS) / 2)
