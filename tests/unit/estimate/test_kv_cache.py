"""Eq 3 for every attention kind, against figures worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maestroctl.domain.llm import KvGeometry
from maestroctl.estimate.kv_cache import (
    estimate_kv_bytes,
    estimate_kv_bytes_per_token,
    estimate_sequence_kv_bytes,
)
from maestroctl.testing.builders import make_node_profile

LLAMA_8B = KvGeometry(num_layers=32, num_kv_heads=8, head_dim=128)  # GQA, 32 query heads
SMOLLM2 = KvGeometry(num_layers=30, num_kv_heads=3, head_dim=64)
MQA = KvGeometry(num_layers=32, num_kv_heads=1, head_dim=64)
MLA = KvGeometry(num_layers=61, num_kv_heads=128, head_dim=128, latent_dim=576)
GEMMA_LIKE = KvGeometry(
    num_layers=6, num_kv_heads=1, head_dim=256, sliding_window=512, num_sliding_layers=5
)


@pytest.mark.parametrize(
    ("geometry", "per_token"),
    [
        (LLAMA_8B, 131_072),
        (SMOLLM2, 23_040),
        (MQA, 8_192),
        (MLA, 70_272),
        (GEMMA_LIKE, 6_144),
        (KvGeometry(32, 8, 128, bytes_per_element=1.0), 65_536),
    ],
    ids=["gqa", "smollm2", "mqa", "mla", "sliding", "fp8"],
)
def test_bytes_per_token(geometry, per_token):
    assert estimate_kv_bytes_per_token(geometry) == per_token


def test_sequence_is_rounded_up_to_whole_blocks():
    assert estimate_kv_bytes(LLAMA_8B, 0) == 0
    assert estimate_kv_bytes(LLAMA_8B, 1) == 16 * 131_072
    assert estimate_kv_bytes(LLAMA_8B, 17) == 32 * 131_072


def test_sliding_layers_keep_their_window_only():
    layer = 2 * 1 * 256 * 2
    assert estimate_kv_bytes(GEMMA_LIKE, 256) == 6 * 256 * layer
    assert estimate_kv_bytes(GEMMA_LIKE, 4096) == (1 * 4096 + 5 * 512) * layer


def test_impossible_numbers_are_errors():
    with pytest.raises(ValueError):
        estimate_kv_bytes(MQA, -1)


@given(st.integers(0, 100_000), st.integers(0, 5000))
def test_longer_sequence_never_holds_less_and_never_more_than_alpha_says(tokens, more):
    for geometry in (LLAMA_8B, MLA, GEMMA_LIKE):
        held = estimate_kv_bytes(geometry, tokens)
        assert held <= estimate_kv_bytes(geometry, tokens + more)
        alpha = estimate_kv_bytes_per_token(geometry)
        assert held <= alpha * (tokens + geometry.block_tokens)


def test_profile_books_at_most_one_full_sequence():
    profile = make_node_profile("a")
    assert estimate_sequence_kv_bytes(profile, 10**9) == 1024 * profile.kv_bytes_per_token
    assert estimate_sequence_kv_bytes(profile, -5) == 0
