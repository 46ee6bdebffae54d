"""No text at all: the ablation ``no_embedding``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from maestroctl.predict.embedding import FloatArray


class NoEncoder:
    """Implements `TextEncoder` with vectors of no dimension."""

    name = "none"
    dimension = 0

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Empty vectors, (num_windows, 0)."""
        return np.zeros((len(windows), 0), dtype=np.float32)
