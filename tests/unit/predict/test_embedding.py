"""Windows anchored to the prompt, embedded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from maestroctl.predict.embedding import (
    FloatArray,
    WindowEmbedder,
    pool,
    split_windows,
)
from maestroctl.predict.encoders.sketch import SketchEncoder, fit_sketch
from maestroctl.predict.encoders.static import StaticEncoder, distil_static


class Lengths:
    """Counts what it is asked for; a window's vector is its length."""

    name = "lengths"
    dimension = 2

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, windows: Sequence[str]) -> FloatArray:
        self.encoded += len(windows)
        return np.array([[len(w), 1.0] for w in windows], dtype=np.float32)


def test_windows_put_together_are_the_text() -> None:
    text = "".join(chr(97 + k % 26) for k in range(1234))
    assert "".join(split_windows(text)) == text
    assert split_windows("") == []


def test_a_growing_history_changes_only_its_last_window() -> None:
    text = "word " * 500
    before, after = split_windows(text), split_windows(text + "more")
    assert before[:-1] == after[: len(before) - 1]


def test_a_window_is_encoded_once() -> None:
    encoder = Lengths()
    embedder = WindowEmbedder(encoder)
    embedder.embed_windows(["a", "bb", "a"])
    embedder.embed_windows(["bb", "ccc"])
    assert encoder.encoded == 3
    assert embedder.misses == 3


def test_a_cache_smaller_than_one_request_still_answers() -> None:
    embedder = WindowEmbedder(Lengths(), max_cached=1)
    embedder.embed_windows(["a"])
    found = embedder.embed_windows(["bb", "a", "ccc", "dddd"])
    assert [float(v[0]) for v in found] == [2, 1, 3, 4]


def test_no_window_pools_to_zeros() -> None:
    assert pool([], 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", ["sketch", "static"])
def test_an_encoder_read_back_gives_the_same_bits(kind: str) -> None:
    windows = [f"alpha beta {k} gamma" for k in range(30)] * 2
    sketch = fit_sketch(windows, 4)
    encoder = sketch if kind == "sketch" else distil_static(sketch, windows, 3)
    again = (SketchEncoder if kind == "sketch" else StaticEncoder).from_arrays(encoder.to_arrays())
    assert again.encode(windows).tobytes() == encoder.encode(windows).tobytes()


def test_a_window_does_not_depend_on_its_batch() -> None:
    windows = [f"alpha beta {k} gamma" for k in range(30)]
    encoder = fit_sketch(windows, 4)
    together = encoder.encode(windows)
    assert all(
        encoder.encode([w])[0].tobytes() == together[k].tobytes() for k, w in enumerate(windows)
    )
