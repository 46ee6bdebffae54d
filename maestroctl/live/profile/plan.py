"""How much a profile measures: sizes, repeats, limits, and how long each step should take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from maestroctl.domain.llm import ModelProfile
from maestroctl.estimate.batch_time import estimate_batch_s
from maestroctl.estimate.service_time import estimate_decode_s, estimate_prefill_s

Shape = tuple[int, int]
"""(batch, prompt tokens) of one decoding run."""
Group = tuple[tuple[int, int], ...]
"""(prompt tokens, output tokens) of requests that are sent together."""

_CHECK_BATCHES = (1, 2, 3, 5, 7, 10, 14, 16)
"""Sizes of held-out groups: most are none of the sizes the fit has seen."""


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """What is done.

    Attributes:
        batches: batch sizes, rising; those over what the KV pool holds are left out.
        short_tokens: prompt of the runs that measure batches.
        long_shapes: runs with much context.
        decode_tokens: output tokens of each request of a run.
        prefill_tokens: prompt lengths.
        least_rounds, most_rounds: of decoding, prefill and held-out groups.
        spread_target: rounds end when every spread is at most this.
        rounds_limit_s: rounds end when they took this long.
        cold_starts, sleep_cycles: how often.
        second_copy: measure gamma where a second engine fits.
        most_batch: sequences the engine takes at once.
    """

    batches: tuple[int, ...] = (1, 2, 4, 6, 8, 12, 16, 24, 32)
    short_tokens: int = 16
    long_shapes: tuple[Shape, ...] = ((1, 1024), (4, 512), (8, 256))
    decode_tokens: int = 48
    prefill_tokens: tuple[int, ...] = (32, 128, 256, 512, 1024)
    least_rounds: int = 3
    most_rounds: int = 8
    spread_target: float = 0.05
    rounds_limit_s: float = 300.0
    cold_starts: int = 2
    sleep_cycles: int = 5
    second_copy: bool = True
    most_batch: int = 32

    @classmethod
    def quick(cls) -> ProfilePlan:
        """At most three minutes for a small model on two CPU cores."""
        return cls(
            batches=(1, 2, 4, 8, 12, 16),
            long_shapes=((1, 512), (4, 256), (8, 128)),
            decode_tokens=24,
            prefill_tokens=(32, 128, 256, 1024),
            least_rounds=2,
            most_rounds=4,
            rounds_limit_s=60.0,
            cold_starts=1,
            sleep_cycles=2,
            second_copy=False,
            most_batch=16,
        )

    def fitted(self, max_model_len: int, pool_tokens: int, block_tokens: int) -> ProfilePlan:
        """The plan without what a model of this length and a pool of this size cannot take."""

        def fits(shape: Shape) -> bool:
            batch, prompt = shape
            tokens = prompt + self.decode_tokens
            blocks = -(-tokens // block_tokens)
            return tokens <= max_model_len and batch * blocks * block_tokens <= pool_tokens

        longest = max_model_len - 8
        lengths = [min(n, longest) for n in self.prefill_tokens if n // 2 <= longest]
        return replace(
            self,
            batches=tuple(b for b in self.batches if fits((b, self.short_tokens))) or (1,),
            long_shapes=tuple(shape for shape in self.long_shapes if fits(shape)),
            prefill_tokens=tuple(dict.fromkeys(n for n in lengths if n > 0)),
        )

    def decode_shapes(self) -> tuple[Shape, ...]:
        """Every decoding run of one round."""
        return (*((batch, self.short_tokens) for batch in self.batches), *self.long_shapes)

    def check_groups(self, lengths: Sequence[int], most_batch: int) -> list[Group]:
        """Held-out groups of one round.

        Args:
            lengths: random numbers from 0 to 999, taken in turn.
            most_batch: larger groups are left out.
        """
        numbers = iter(lengths)
        batches = [batch for batch in _CHECK_BATCHES if batch <= most_batch]
        return [
            tuple((8 + next(numbers) % 120, 8 + next(numbers) % 33) for _ in range(batch))
            for batch in batches
        ]

    def numbers_needed(self) -> int:
        """Random numbers for one round of groups."""
        return 2 * sum(_CHECK_BATCHES)

    def expected_rounds(self, round_s: float) -> int:
        """Rounds that fit the limit: spreads are seldom small at once."""
        fitting = int(self.rounds_limit_s / max(round_s, 1e-3)) + 1
        return max(self.least_rounds, min(self.most_rounds, fitting))

    def estimate_steps_s(self, costs: ModelProfile) -> dict[str, float]:
        """Seconds that each step should take by what is known so far; for the time left."""
        decode_s = sum(
            batch * estimate_prefill_s(costs, prompt)
            + self.decode_tokens * estimate_decode_s(costs, batch, batch * prompt)
            for batch, prompt in self.decode_shapes()
        )
        prefill_s = sum(estimate_prefill_s(costs, tokens) for tokens in self.prefill_tokens)
        groups = [tuple((68, 24) for _ in range(batch)) for batch in _CHECK_BATCHES]
        check_s = sum(max(estimate_batch_s(costs.iteration, group, 256)) for group in groups)
        round_s = decode_s + prefill_s + check_s
        cold_s, cycle_s = costs.cold_start_s, costs.sleep_s + costs.wake_s
        copy_s = cold_s + 12 * decode_s / max(1, len(self.decode_shapes()))
        return {
            "cold start": cold_s * self.cold_starts,
            **{f"round {number + 1}": round_s for number in range(self.expected_rounds(round_s))},
            "sleep": cycle_s * self.sleep_cycles,
            **({"second copy": copy_s} if self.second_copy else {}),
            "stop": 2.0,
        }
