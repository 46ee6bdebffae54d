"""The fit of an iteration's costs: it finds what is known, in spite of noise and outliers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from maestroctl.domain.llm import IterationCost
from maestroctl.estimate.iteration_fit import IterationSample, fit_iteration_cost

TRUE = IterationCost(c0_s=0.032, c1_s=0.0011, c2_s=2e-6, cp_s=0.0012)
REQUEST_S = 0.004
DECODES = ((1, 30), (2, 30), (4, 30), (8, 30), (16, 30), (1, 1024), (4, 512))


def seconds_of(sample: IterationSample, cost: IterationCost = TRUE) -> float:
    return (
        cost.c0_s * sample.iterations
        + cost.c1_s * sample.decoding
        + cost.c2_s * sample.context_tokens
        + cost.cp_s * sample.prefill_tokens
        + REQUEST_S * sample.requests
    )


def make_samples(
    rng: random.Random, noise: float, cost: IterationCost = TRUE
) -> list[IterationSample]:
    made = []
    for _ in range(4):
        made += [IterationSample(1.0, 24, 24 * b, 24 * b * context) for b, context in DECODES]
        made += [
            IterationSample(1.0, -(-tokens // 256), prefill_tokens=tokens, requests=1)
            for tokens in (32, 128, 256, 512, 1024)
        ]
    return [
        replace(sample, seconds=seconds_of(sample, cost) * (1 + rng.gauss(0.0, noise)))
        for sample in made
    ]


def as_tuple(cost: IterationCost) -> tuple[float, float, float, float]:
    return (cost.c0_s, cost.c1_s, cost.c2_s, cost.cp_s)


def test_exact_measurements_give_the_exact_costs() -> None:
    fit = fit_iteration_cost(make_samples(random.Random(1), 0.0))
    assert as_tuple(fit.cost) == pytest.approx(as_tuple(TRUE), rel=1e-6)
    assert fit.quality.request_s == pytest.approx(REQUEST_S, rel=1e-4)
    assert fit.quality.median_error < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_five_percent_moves_each_cost_little(seed: int) -> None:
    fit = fit_iteration_cost(make_samples(random.Random(seed), 0.05))
    assert fit.cost.c0_s == pytest.approx(TRUE.c0_s, rel=0.06)
    assert fit.cost.c1_s == pytest.approx(TRUE.c1_s, rel=0.25)
    assert fit.cost.c2_s == pytest.approx(TRUE.c2_s, rel=0.5)
    assert fit.cost.cp_s == pytest.approx(TRUE.cp_s, rel=0.06)


def test_intervals_hold_the_truth_most_of_the_time() -> None:
    held = total = 0
    for seed in range(40):
        quality = fit_iteration_cost(make_samples(random.Random(seed), 0.05)).quality
        pairs = (
            (quality.c0_interval_s, TRUE.c0_s),
            (quality.c1_interval_s, TRUE.c1_s),
            (quality.c2_interval_s, TRUE.c2_s),
            (quality.cp_interval_s, TRUE.cp_s),
        )
        held += sum(low <= truth <= high for (low, high), truth in pairs)
        total += len(pairs)
    assert held / total > 0.85


def test_a_disturbed_tenth_of_the_samples_hardly_matters() -> None:
    rng = random.Random(3)
    samples = make_samples(rng, 0.02)
    for place in rng.sample(range(len(samples)), len(samples) // 10):
        samples[place] = replace(samples[place], seconds=samples[place].seconds * 3)
    fit = fit_iteration_cost(samples)
    assert fit.cost.c0_s == pytest.approx(TRUE.c0_s, rel=0.08)
    assert fit.cost.cp_s == pytest.approx(TRUE.cp_s, rel=0.08)


@pytest.mark.parametrize("seconds", [1e-5, 1e-3, 100.0])
def test_one_absurd_sample_has_no_say(seconds: float) -> None:
    """Seen: a client that got no processor time read all tokens of a run at once."""
    samples = make_samples(random.Random(4), 0.02)
    clean = fit_iteration_cost(samples).cost
    samples.append(IterationSample(seconds, 23, 23, 23 * 28))
    fit = fit_iteration_cost(samples)
    assert fit.cost.c0_s == pytest.approx(clean.c0_s, rel=0.02)
    assert fit.cost.cp_s == pytest.approx(clean.cp_s, rel=0.02)


def test_no_cost_is_negative_whatever_was_seen() -> None:
    falling = replace(TRUE, c1_s=-0.001)  # larger batches are faster: noise can look like that
    fit = fit_iteration_cost(make_samples(random.Random(2), 0.01, falling))
    assert min(as_tuple(fit.cost)) >= 0.0
    assert fit.cost.c1_s == 0.0


def test_non_negative_fit_is_no_worse_than_any_other_on_a_grid() -> None:
    """Brute force over two costs: no grid point has fewer squares."""
    rng = random.Random(7)
    rows = [(n, n * b) for n, b in ((10, 1), (10, 2), (20, 4), (20, 8))]
    samples = [IterationSample(0.03 * n + 0.002 * nb + rng.gauss(0, 0.02), n, nb) for n, nb in rows]
    cost = fit_iteration_cost(samples).cost

    def squares(c0: float, c1: float) -> float:
        terms = [(c0 * s.iterations + c1 * s.decoding) / s.seconds - 1 for s in samples]
        return sum(term * term for term in terms)

    best = squares(cost.c0_s, cost.c1_s)
    grid = [squares(i * 0.0005, j * 0.00005) for i in range(100) for j in range(100)]
    assert best <= min(grid) * 1.35, "Huber weights may cost a little, not more"


def test_one_kind_of_sample_leaves_the_other_costs_at_zero() -> None:
    fit = fit_iteration_cost([IterationSample(0.32, 10, 10)])
    assert fit.cost.cp_s == 0.0
    assert fit.cost.c0_s + fit.cost.c1_s == pytest.approx(0.032)


def test_no_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs samples"):
        fit_iteration_cost([])
