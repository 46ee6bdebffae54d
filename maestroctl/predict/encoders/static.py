"""One vector per word, distilled from a sentence encoder: a look-up and a weighted mean.

Each word of the training vocabulary is embedded on its own by the teacher, the vectors are
reduced by PCA, and frequent words are weighted down (smooth inverse frequency), as in the
published static distillations. At serving time no network runs at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from maestroctl.predict.embedding import FloatArray, TextEncoder
from maestroctl.predict.encoders.words import split_words

_SIF = 1e-3
"""Smoothing of the inverse word frequency."""


class StaticEncoder:
    """Implements `TextEncoder` with numpy alone.

    Args:
        words: the vocabulary; any other word is skipped.
        table: (num_words, dimension), already weighted.
    """

    name = "static"

    def __init__(self, words: Sequence[str], table: FloatArray) -> None:
        self._words = list(words)
        self._place = {word: place for place, word in enumerate(self._words)}
        self._table = table.astype(np.float32)

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._table.shape[1])

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Mean word vector of each window; zeros where no word is known."""
        out = np.zeros((len(windows), self.dimension), dtype=np.float32)
        for number, window in enumerate(windows):
            places = [self._place[word] for word in split_words(window) if word in self._place]
            if places:
                out[number] = self._table[places].mean(axis=0)
        return out

    def to_arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """What an artifact keeps: half-precision vectors and the words as UTF-8 bytes."""
        packed = np.frombuffer("\n".join(self._words).encode(), dtype=np.uint8)
        return {"table": self._table.astype(np.float16), "words": packed}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[np.generic]]) -> StaticEncoder:
        """The inverse of `to_arrays`."""
        words = arrays["words"].tobytes().decode().split("\n")
        return cls(words, arrays["table"].astype(np.float32))


def distil_static(
    teacher: TextEncoder, windows: Sequence[str], dimension: int, *, max_words: int = 12_000
) -> StaticEncoder:
    """Embed the most frequent words of the training windows with `teacher` and reduce them."""
    counts = Counter(word for window in windows for word in split_words(window))
    common = [word for word, count in counts.most_common(max_words) if count > 1]
    words = [word for word in common if word.isprintable()]
    if not words:
        return StaticEncoder([], np.zeros((0, dimension), dtype=np.float32))
    vectors = teacher.encode(words).astype(np.float64)
    vectors -= vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(vectors, full_matrices=False)
    reduced = vectors @ axes[:dimension].T
    share = np.array([counts[word] for word in words]) / max(1, counts.total())
    weighted = reduced * (_SIF / (_SIF + share))[:, None]
    return StaticEncoder(words, weighted.astype(np.float16).astype(np.float32))
