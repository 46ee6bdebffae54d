"""A wide encoder reduced to its leading principal components, so that a row can keep a few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from maestroctl.predict.embedding import FloatArray, TextEncoder


class ProjectedEncoder:
    """Implements `TextEncoder` on top of another one.

    Args:
        inner: the wide encoder; its name is kept, since it decides what must be installed.
        mean: (inner dimension,) subtracted first.
        axes: (inner dimension, dimension) principal axes.
    """

    def __init__(self, inner: TextEncoder, mean: FloatArray, axes: FloatArray) -> None:
        self.inner = inner
        self.name = inner.name
        self._mean = mean.astype(np.float32)
        self._axes = axes.astype(np.float32)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._axes.shape[1])

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Leading components of the inner vectors, (num_windows, dimension)."""
        out = np.zeros((len(windows), self.dimension), dtype=np.float32)
        # Row by row: a matrix product over the batch would round differently in another batch.
        for number, vector in enumerate(self.inner.encode(windows)):
            out[number] = (vector - self._mean) @ self._axes
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What an artifact keeps; the inner encoder is installed, not stored."""
        return {"mean": self._mean, "axes": self._axes}

    @classmethod
    def from_arrays(
        cls, inner: TextEncoder, arrays: Mapping[str, npt.NDArray[np.generic]]
    ) -> ProjectedEncoder:
        """The inverse of `to_arrays`."""
        return cls(inner, arrays["mean"].astype(np.float32), arrays["axes"].astype(np.float32))


def fit_projection(inner: TextEncoder, windows: Sequence[str], dimension: int) -> ProjectedEncoder:
    """Principal components of the inner vectors of a sample of windows."""
    vectors = inner.encode(windows).astype(np.float64)
    mean = vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(vectors - mean, full_matrices=False)
    return ProjectedEncoder(inner, mean.astype(np.float32), axes[:dimension].T.astype(np.float32))
