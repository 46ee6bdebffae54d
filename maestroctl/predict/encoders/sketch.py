"""Hashed TF-IDF of words and word pairs, projected by a truncated SVD (Chimera's text sketch).

Why hashed: the vocabulary needs no file, a word never seen before still lands somewhere, and the
whole encoder is one (buckets, dimension) matrix.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from maestroctl.predict.embedding import FloatArray
from maestroctl.predict.encoders.words import split_words

NUM_BUCKETS = 1 << 13
_MIX = np.uint32(0x9E3779B1)
_MAX_MEMO = 200_000


class SketchEncoder:
    """Implements `TextEncoder` with numpy alone.

    Args:
        idf: (NUM_BUCKETS,) inverse document frequency.
        projection: (NUM_BUCKETS, dimension) right singular vectors.
    """

    name = "sketch"

    def __init__(self, idf: FloatArray, projection: FloatArray) -> None:
        self._idf = idf.astype(np.float32)
        self._projection = projection.astype(np.float32)
        self._word_hash: dict[str, int] = {}

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._projection.shape[1])

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Unit TF-IDF vectors of the windows times the projection."""
        out = np.zeros((len(windows), self.dimension), dtype=np.float32)
        for number, window in enumerate(windows):
            buckets, weights = self.weigh(window)
            if buckets.size:
                out[number] = weights @ self._projection[buckets]
        return out

    def weigh(self, window: str) -> tuple[npt.NDArray[np.int64], FloatArray]:
        """Buckets hit by a window and their unit-length TF-IDF weights."""
        buckets, counts = np.unique(self.hash_terms(window), return_counts=True)
        weights = ((1.0 + np.log(counts)) * self._idf[buckets]).astype(np.float32)
        length = float(np.sqrt((weights * weights).sum()))
        return buckets, weights / length if length > 0 else weights

    def hash_terms(self, window: str) -> npt.NDArray[np.int64]:
        """One bucket per word and per pair of neighbours."""
        words = split_words(window)
        memo = self._word_hash
        if len(memo) > _MAX_MEMO:
            memo.clear()
        codes = np.empty(len(words), dtype=np.uint32)
        for place, word in enumerate(words):
            code = memo.get(word)
            if code is None:
                code = memo[word] = zlib.crc32(word.encode("utf-8", "surrogatepass"))
            codes[place] = code
        pairs = (codes[:-1] * _MIX) ^ codes[1:]
        terms = np.concatenate([codes, pairs]) if codes.size else codes
        mixed = (terms ^ (terms >> np.uint32(15))) & np.uint32(NUM_BUCKETS - 1)
        return mixed.astype(np.int64)

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What an artifact keeps, at half precision."""
        return {
            "idf": self._idf.astype(np.float16),
            "projection": self._projection.astype(np.float16),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> SketchEncoder:
        """The inverse of `to_arrays`."""
        return cls(arrays["idf"].astype(np.float32), arrays["projection"].astype(np.float32))


def fit_sketch(windows: Sequence[str], dimension: int, *, seed: int = 0) -> SketchEncoder:
    """Learn document frequencies and the projection from windows of the training jobs."""
    from scipy.sparse import csr_matrix
    from sklearn.utils.extmath import randomized_svd

    blank = SketchEncoder(
        np.ones(NUM_BUCKETS, dtype=np.float32), np.zeros((NUM_BUCKETS, dimension), np.float32)
    )
    seen = np.zeros(NUM_BUCKETS)
    for window in windows:
        seen[np.unique(blank.hash_terms(window))] += 1
    idf = (np.log((1 + len(windows)) / (1 + seen)) + 1).astype(np.float16).astype(np.float32)
    weigher = SketchEncoder(idf, np.zeros((NUM_BUCKETS, dimension), np.float32))
    projection = np.zeros((NUM_BUCKETS, dimension), dtype=np.float32)
    if not windows:
        return SketchEncoder(idf, projection)
    columns, values, starts = [], [], [0]
    for window in windows:
        buckets, weights = weigher.weigh(window)
        columns.append(buckets)
        values.append(weights)
        starts.append(starts[-1] + len(buckets))
    matrix = csr_matrix(
        (np.concatenate(values), np.concatenate(columns), starts),
        shape=(len(windows), NUM_BUCKETS),
    )
    rank = min(dimension, min(matrix.shape) - 1)
    if rank > 0 and matrix.nnz:
        _, _, rows = randomized_svd(matrix, n_components=rank, random_state=seed, n_iter=3)
        projection[:, :rank] = rows.T
    # Rounded here, so that the encoder in memory and the one read back are the same numbers.
    return SketchEncoder(idf, projection.astype(np.float16).astype(np.float32))
