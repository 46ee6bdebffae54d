"""KV cache of one sequence (Maestro Eq 3) for the attention kinds in use.

* MHA, GQA, MQA: 2 (keys and values) x heads x head size x bytes per element, per token and layer.
* MLA: one compressed latent per token and layer in place of keys and values; it is not split by
  tensor parallelism, every device holds all of it.
* Sliding window: a sliding layer keeps the last `sliding_window` tokens only, the others all.

See also: `memory_need` (Eq 4), which adds the KV limit of an engine to everything else it holds.
"""

from __future__ import annotations

import math

from maestroctl.domain.llm import KvGeometry, ModelProfile


def estimate_kv_bytes_per_token(geometry: KvGeometry) -> int:
    """KV bytes that one more token costs while every layer keeps it: alpha of Maestro Eq 3.

    Sliding layers count in full, so for long sequences this is an upper bound;
    `estimate_kv_bytes` has the exact figure.

    Args:
        geometry: after the tensor-parallel split.

    Returns:
        Bytes per token and device.
    """
    return math.ceil(geometry.num_layers * _layer_bytes_per_token(geometry))


def estimate_kv_bytes(geometry: KvGeometry, num_tokens: int) -> int:
    """KV cache that one sequence holds on one device: R_kv = alpha(M) (P + L), Maestro Eq 3.

    Args:
        geometry: layers, KV heads, head size, bytes per element, after the tensor-parallel split.
        num_tokens: prompt plus (predicted) output, at least 0.

    Returns:
        Bytes, rounded up to whole blocks in every layer.

    Raises:
        ValueError: num_tokens is negative.
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens is at least 0, found {num_tokens}")
    per_token = _layer_bytes_per_token(geometry)
    full = round_up_to_blocks(num_tokens, geometry.block_tokens)
    num_sliding = geometry.num_sliding_layers if geometry.sliding_window is not None else 0
    window = geometry.sliding_window or 0
    kept = round_up_to_blocks(min(num_tokens, window), geometry.block_tokens)
    num_full = geometry.num_layers - num_sliding
    return math.ceil(per_token * (num_full * full + num_sliding * min(kept, full)))


def estimate_sequence_kv_bytes(profile: ModelProfile, num_tokens: int) -> int:
    """The same from a profile, which knows alpha and the block size but not the layers.

    Args:
        profile: of the model on this device.
        num_tokens: clamped to [0, max_model_len].

    Returns:
        Bytes, rounded up to whole blocks; an upper bound for models with sliding layers.
    """
    tokens = min(max(num_tokens, 0), profile.max_model_len)
    return round_up_to_blocks(tokens, profile.block_tokens) * profile.kv_bytes_per_token


def round_up_to_blocks(num_tokens: int, block_tokens: int) -> int:
    """Tokens that the blocks of `num_tokens` can hold."""
    return -(-num_tokens // block_tokens) * block_tokens


def _layer_bytes_per_token(geometry: KvGeometry) -> float:
    if geometry.latent_dim is not None:
        return geometry.latent_dim * geometry.bytes_per_element
    return 2 * geometry.num_kv_heads * geometry.head_dim * geometry.bytes_per_element
