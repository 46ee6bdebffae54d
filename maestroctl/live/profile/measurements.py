"""What a profile has measured so far; every step adds to it, an interruption loses none of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from maestroctl.domain.llm import IterationCost
from maestroctl.domain.profile import DecodePoint, PrefillPoint, ProfileCheck
from maestroctl.estimate.batch_time import estimate_batch_s
from maestroctl.estimate.iteration_fit import IterationFit, IterationSample, fit_iteration_cost
from maestroctl.live.profile.plan import Group, Shape
from maestroctl.live.profile.samples import spread_of

_LEAST_GAIN = 1.05
"""A batch twice as large pays when it makes this much more tokens per second."""


@dataclass(slots=True)
class Measurements:
    """Owner: `measure`. Seconds and bytes.

    Attributes:
        decode: per shape: samples, and tokens in KV of one sequence.
        prefill: per prompt length.
        checks: held-out groups and the stage times that came out.
        slowdowns: decoding beside a busy neighbour over decoding alone.
        start_peak_bytes: the most that was held while starting.
        awake_bytes, asleep_bytes: per device, idle; one per reading.
        loaded_bytes: the most that was held under load.
        host_awake_bytes, host_asleep_bytes: host memory; equal to the others on a CPU.
        kv_held_bytes: KV pool as the engine counts it.
        num_blocks, block_tokens: of its KV pool; 0 = it does not say.
    """

    cold_s: list[float] = field(default_factory=list)
    sleep_s: list[float] = field(default_factory=list)
    wake_s: list[float] = field(default_factory=list)
    decode: dict[Shape, list[tuple[IterationSample, float]]] = field(default_factory=dict)
    prefill: dict[int, list[IterationSample]] = field(default_factory=dict)
    checks: list[tuple[Group, list[float]]] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    start_peak_bytes: int = 0
    awake_bytes: list[int] = field(default_factory=list)
    asleep_bytes: list[int] = field(default_factory=list)
    loaded_bytes: int = 0
    host_awake_bytes: int = 0
    host_asleep_bytes: int = 0
    kv_held_bytes: int = 0
    kv_pool_bytes: int = 0
    num_blocks: int = 0
    block_tokens: int = 0

    def fit(self) -> IterationFit | None:
        """The costs of an iteration; None while there is nothing to fit."""
        samples = [sample for runs in self.decode.values() for sample, _ in runs]
        samples += [sample for runs in self.prefill.values() for sample in runs]
        if not self.decode or not self.prefill:
            return None
        return fit_iteration_cost(samples)

    def decode_points(self) -> tuple[DecodePoint, ...]:
        """Seconds per token by batch and context."""
        points = []
        for (batch, _), runs in self.decode.items():
            times = [sample.seconds / sample.iterations for sample, _ in runs]
            context = median(context for _, context in runs)
            points.append(
                DecodePoint(batch, round(context), median(times), _finite(times), len(times))
            )
        return tuple(points)

    def prefill_points(self) -> tuple[PrefillPoint, ...]:
        """Seconds to the first token by length."""
        return tuple(
            PrefillPoint(tokens, median(times), _finite(times), len(times))
            for tokens, runs in self.prefill.items()
            for times in [[sample.seconds for sample in runs]]
        )

    def check(self, cost: IterationCost, max_batched_tokens: int) -> ProfileCheck | None:
        """Predicted against measured stage times of the held-out groups."""
        errors = []
        for group, measured in self.checks:
            predicted = estimate_batch_s(cost, group, max_batched_tokens)
            errors += [p / m - 1.0 for p, m in zip(predicted, measured, strict=True)]
        if not errors:
            return None
        sizes = [len(group) for group, _ in self.checks]
        absolute = sorted(abs(error) for error in errors)
        return ProfileCheck(
            num_stages=len(errors),
            batches=(min(sizes), max(sizes)),
            median_error=median(absolute),
            p90_error=absolute[min(len(absolute) - 1, int(0.9 * len(absolute)))],
            bias=median(errors),
        )

    def paying_batch(self, short_tokens: int) -> tuple[int, bool]:
        """The largest batch that pays, and whether a larger one was tried and does not."""
        best, best_rate = 0, 0.0
        for (batch, prompt), runs in sorted(self.decode.items()):
            if prompt != short_tokens:
                continue
            times = [sample.seconds / sample.iterations for sample, _ in runs]
            rate = batch / median(times)
            if best and rate < best_rate * _LEAST_GAIN ** math.log2(batch / best):
                return best, True
            best, best_rate = batch, rate
        return max(1, best), False

    def worst_spread(self) -> float:
        """The largest spread of what is repeated."""
        runs = [[s.seconds / s.iterations for s, _ in runs] for runs in self.decode.values()]
        runs += [[s.seconds for s in samples] for samples in self.prefill.values()]
        return max((spread_of(times) for times in runs), default=0.0)


def _finite(times: Sequence[float]) -> float:
    return spread_of(times) if len(times) > 1 else 0.0
