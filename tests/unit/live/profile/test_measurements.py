"""From times of tokens to samples, points, the batch that pays and the error of the check."""

from __future__ import annotations

import pytest

from maestroctl.domain.llm import IterationCost
from maestroctl.estimate.batch_time import estimate_batch_s
from maestroctl.estimate.iteration_fit import IterationSample
from maestroctl.live.profile.load import Trace
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import ProfilePlan
from maestroctl.live.profile.samples import decode_sample, prefill_sample, spread_of


def trace(first_s: float, step_s: float, count: int, prompt: int = 10) -> Trace:
    tokens = tuple((first_s + step_s * k, k + 1) for k in range(count))
    return Trace(prompt, count, 0.0, tokens)


def test_decoding_counts_from_the_last_first_token_to_the_first_end() -> None:
    found = decode_sample([trace(1.0, 0.1, 11), trace(1.3, 0.1, 11)])
    assert found is not None
    sample, context = found
    assert sample.seconds == pytest.approx(0.7)
    assert sample.iterations == 7
    assert sample.decoding == 14
    # 10 of prompt, and on average 7.5 and 4.5 tokens of output: from 4 to 11, from 1 to 8.
    assert context == pytest.approx(10 + (7.5 + 4.5) / 2)
    assert sample.context_tokens == pytest.approx(7 * 2 * context)


def test_requests_that_never_decode_together_give_no_sample() -> None:
    assert decode_sample([trace(0.0, 0.1, 3), trace(9.0, 0.1, 3)]) is None


def test_a_chunk_of_several_tokens_is_counted_as_such() -> None:
    bursts = Trace(10, 9, 0.0, ((1.0, 1), (1.4, 5), (1.8, 9)))
    found = decode_sample([bursts])
    assert found is not None
    assert found[0].iterations == 8


def test_a_long_prompt_takes_as_many_iterations_as_it_has_pieces() -> None:
    sample = prefill_sample(trace(1.0, 0.1, 2, prompt=600), 256)
    assert (sample.iterations, sample.prefill_tokens, sample.requests) == (3, 600, 1)


def test_spread_is_half_the_quartile_distance_over_the_median() -> None:
    assert spread_of([1.0, 1.0, 1.0]) == 0.0
    assert spread_of([0.9, 1.0, 1.1, 1.2, 0.8]) == pytest.approx(0.1)
    assert spread_of([1.0]) == float("inf")


def rounds(step_s: dict[int, float]) -> Measurements:
    seen = Measurements()
    for batch, seconds in step_s.items():
        sample = IterationSample(seconds * 10, 10, 10 * batch, 10 * batch * 20)
        seen.decode[batch, 16] = [(sample, 20.0)]
    return seen


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        ({1: 0.03, 2: 0.03, 4: 0.04, 8: 0.05}, (8, False)),
        ({1: 0.03, 2: 0.03, 4: 0.06, 8: 0.12}, (2, True)),
        ({1: 0.03}, (1, False)),
        ({8: 0.040, 12: 0.056}, (12, False)),
    ],
    ids=["all pay", "four does not", "one", "half as many more need pay less"],
)
def test_the_largest_batch_that_pays(step_s: dict[int, float], expected: tuple[int, bool]) -> None:
    assert rounds(step_s).paying_batch(16) == expected


def test_the_check_compares_stage_by_stage() -> None:
    cost = IterationCost(0.03, 0.001, 0.0, 0.001)
    group = ((20, 5), (60, 9))
    predicted = estimate_batch_s(cost, group, 256)
    seen = Measurements(checks=[(group, [predicted[0] / 1.1, predicted[1] / 0.9])])
    check = seen.check(cost, 256)
    assert check is not None
    assert check.num_stages == 2
    assert check.batches == (2, 2)
    assert check.median_error == pytest.approx(0.1)
    assert check.bias == pytest.approx(0.0, abs=1e-9)


def test_held_out_groups_reach_from_one_to_sixteen_and_differ_from_the_fit() -> None:
    plan = ProfilePlan.quick()
    groups = plan.check_groups(list(range(plan.numbers_needed())), 16)
    sizes = [len(group) for group in groups]
    assert (min(sizes), max(sizes)) == (1, 16)
    assert sum(size not in plan.batches for size in sizes) >= len(sizes) // 2


def test_a_plan_leaves_out_what_a_small_pool_cannot_hold() -> None:
    plan = ProfilePlan().fitted(max_model_len=256, pool_tokens=512, block_tokens=128)
    assert plan.batches == (1, 2, 4)
    assert all(prompt + plan.decode_tokens <= 256 for _, prompt in plan.long_shapes)
    assert max(plan.prefill_tokens) <= 248
