"""Text to vector: fixed windows, each embedded once, mean-pooled.

Windows are anchored at the first character of the whole prompt with a fixed stride, and cached
under a hash of their content, so a history that grows changes only its last window. The encoder
behind the windows is exchangeable:

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
from itertools import pairwise
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


def split_windows(text: str, offset: int = 0) -> list[str]:
    """Cut `text` at the window grid of the prompt it is the end of.

    Args:
        text: the end of a prompt, or all of it.
        offset: characters of the prompt before `text`.
    """
    first = WINDOW_CHARS - offset % WINDOW_CHARS
    cuts = [0, *range(first, len(text), WINDOW_CHARS), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if b > a]


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
