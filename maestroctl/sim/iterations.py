"""How long iterations last: a quadratic, which is solved and not stepped.

One iteration lasts (c0 + c1 b + c2 sum(context) + cp prefill_tokens) gamma (algorithms section 1).
The context grows by b per iteration, so each lasts c2 b gamma longer than the one before.
"""

from __future__ import annotations

import math


class Iterations:
    """Iterations of one engine in flight; nothing joins or leaves the clock meanwhile.

    Attributes:
        n: how many.
        prefill_tokens: that the first carries; then there is no second.
        began_s: simulated time.
        gamma: how much slower than alone.
        first_s: seconds of the first, alone.
        growth_s: what each lasts longer than the one before, alone.
    """

    __slots__ = ("began_s", "first_s", "gamma", "growth_s", "n", "prefill_tokens")

    def __init__(
        self,
        n: int,
        prefill_tokens: int,
        began_s: float,
        gamma: float,
        first_s: float,
        growth_s: float,
    ) -> None:
        self.n = n
        self.prefill_tokens = prefill_tokens
        self.began_s = began_s
        self.gamma = gamma
        self.first_s = first_s
        self.growth_s = growth_s

    def end_s(self) -> float:
        """Time at which the last of them ends."""
        n = self.n
        return self.began_s + self.gamma * (n * self.first_s + self.growth_s * n * (n - 1) / 2)

    def done_by(self, now_s: float) -> float:
        """The inverse: how many are done at `now_s`, fractions included, were there no end."""
        seconds = (now_s - self.began_s) / self.gamma
        growth = self.growth_s
        if growth <= 0.0:
            return seconds / self.first_s if self.first_s > 0 else math.inf
        b = self.first_s - growth / 2
        return (math.sqrt(b * b + 2 * growth * seconds) - b) / growth
