"""Quantiles of an output length beside the two that a prediction carries.

Predictions come with the 0.5 and the 0.9 quantile, calibrated. Another one is read off the
log-normal distribution through these two; at 0.5 and 0.9 it is what was predicted.
"""

from __future__ import annotations

from statistics import NormalDist

KNOWN_QUANTILE = 0.9


class OutputQuantile:
    """The `quantile` of output lengths.

    Args:
        quantile: from 0.5 to below 1.
    """

    def __init__(self, quantile: float = KNOWN_QUANTILE) -> None:
        if not 0.5 <= quantile < 1:
            raise ValueError(f"a quantile from 0.5 to below 1, not {quantile}")
        normal = NormalDist()
        self._stretch = normal.inv_cdf(quantile) / normal.inv_cdf(KNOWN_QUANTILE)

    def of(self, output_q50: float, output_q90: float) -> float:
        """Tokens.

        Args:
            output_q50: predicted median, tokens.
            output_q90: predicted 0.9 quantile, tokens, at least the median.
        """
        if self._stretch == 1:
            return output_q90
        spread = (1 + output_q90) / (1 + output_q50)
        quantile: float = (1 + output_q50) * spread**self._stretch - 1
        return quantile
