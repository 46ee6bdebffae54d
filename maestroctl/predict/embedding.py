"""Text to vector: fixed windows, each embedded once, mean-pooled.

Windows start at the first character of the text that is read (`domain.stage_text`), with a fixed
stride, so the last parts of a prompt are cut alike in training and when serving. They are cached
under a hash of their content: a prompt that is kept whole and grows changes only its last window,
one whose start is cut off has all of them encoded again. The encoder is exchangeable:

========== =============================================================== ====================
name       what it is                                                      needs
========== =============================================================== ====================
sketch     hashed TF-IDF of words and word pairs, truncated SVD (Chimera)  numpy
static     one vector per word, distilled from MiniLM, weighted mean       numpy
minilm     all-MiniLM-L6-v2 (Maestro), leading principal components        sentence-transformers
none       no text                                                         nothing
========== =============================================================== ====================

See also: `encoders/`, and the accuracy-per-millisecond table in ``docs/prediction.md``.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

WINDOW_CHARS = 400
"""About 100 word pieces, so that MiniLM (256 at most) never cuts a window."""


class TextEncoder(Protocol):
    """Embeds windows. Equal windows give equal vectors, in any batch."""

    @property
    def name(self) -> str:
        """As in the table above."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Vectors of shape (num_windows, dimension)."""


def split_windows(text: str) -> list[str]:
    """The windows of what is read of a text."""
    return [text[at : at + WINDOW_CHARS] for at in range(0, len(text), WINDOW_CHARS)]


class WindowEmbedder:
    """Pools an encoder's windows; keeps the vectors of the windows seen last.

    Args:
        encoder: embeds the windows that are not in the cache.
        max_cached: windows kept; a 384-wide vector takes 1.5 KB.
    """

    def __init__(self, encoder: TextEncoder, max_cached: int = 8192) -> None:
        self.encoder = encoder
        self.hits = 0
        self.misses = 0
        self._max_cached = max_cached
        self._cache: OrderedDict[bytes, FloatArray] = OrderedDict()

    def embed_windows(self, windows: Sequence[str]) -> list[FloatArray]:
        """A vector per window; what the cache does not hold is encoded in one batch."""
        keys = [_content_key(window) for window in windows]
        missing = {
            key: window for key, window in zip(keys, windows, strict=True) if key not in self._cache
        }
        self.misses += len(missing)
        self.hits += len(windows) - len(missing)
        fresh: dict[bytes, FloatArray] = {}
        if missing:
            vectors = self.encoder.encode(list(missing.values()))
            fresh = dict(zip(missing, vectors, strict=True))
        found = [fresh[key] if key in fresh else self._recall(key) for key in keys]
        for key, vector in fresh.items():
            self._cache[key] = vector
        while len(self._cache) > self._max_cached:
            self._cache.popitem(last=False)
        return found

    def _recall(self, key: bytes) -> FloatArray:
        self._cache.move_to_end(key)
        return self._cache[key]


def pool(vectors: Sequence[FloatArray], dimension: int) -> FloatArray:
    """Mean of window vectors; zeros for no window."""
    if not vectors:
        return np.zeros(dimension, dtype=np.float32)
    if len(vectors) == 1:
        return vectors[0]
    total = vectors[0].astype(np.float64)
    for vector in vectors[1:]:
        total = total + vector
    pooled: FloatArray = (total / len(vectors)).astype(np.float32)
    return pooled


def _content_key(window: str) -> bytes:
    return hashlib.blake2b(window.encode("utf-8", "surrogatepass"), digest_size=16).digest()
