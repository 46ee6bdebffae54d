"""When jobs come: Poisson, bursty, or at recorded times.

Each returns rising times from 0 and is a function of its generator alone, so two runs with one
seed have the same arrivals whatever is decided in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise


def poisson_times(rng: random.Random, number: int, rate_rps: float) -> list[float]:
    """Independent exponential gaps."""
    return _renewal(number, lambda: rng.expovariate(rate_rps))


def bursty_times(rng: random.Random, number: int, rate_rps: float, cv: float) -> list[float]:
    """Independent gamma gaps of mean 1 / rate; `cv` is their coefficient of variation, over 0.

    cv 1 is Poisson; production clients are seen between 1 and 10.
    """
    shape = 1.0 / (cv * cv)
    scale = 1.0 / (rate_rps * shape)
    return _renewal(number, lambda: rng.gammavariate(shape, scale))


def recorded_times(
    rng: random.Random, number: int, rate_rps: float, recorded: Sequence[float]
) -> list[float]:
    """Recorded times from a random place on, wrapping around, scaled to a mean rate.

    Args:
        recorded: rising, from 0; at least two.
    """
    gaps = [later - earlier for earlier, later in pairwise(recorded)]
    scale = len(gaps) / (recorded[-1] - recorded[0]) / rate_rps
    index = rng.randrange(len(gaps))
    times = []
    at_s = 0.0
    for _ in range(number):
        times.append(at_s)
        at_s += gaps[index] * scale
        index = (index + 1) % len(gaps)
    return times


def _renewal(number: int, gap: Callable[[], float]) -> list[float]:
    times = []
    at_s = 0.0
    for _ in range(number):
        at_s += gap()
        times.append(at_s)
    return times
