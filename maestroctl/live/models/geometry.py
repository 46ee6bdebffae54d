"""What the files of a model say about its size: KV geometry, weight bytes, context length.

Read from `config.json` and the sizes of the weight files; no library is needed. Where a model has
a shape that the formula of `estimate` does not cover, the engine's own figure replaces it after
the first start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.domain.llm import KvGeometry
from maestroctl.errors import ModelSourceError

CPU_BLOCK_TOKENS = 128
"""Tokens per KV block of vLLM on the CPU; 16 elsewhere."""

_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
_WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, slots=True)
class ModelGeometry:
    """Sizes of one model.

    Attributes:
        kv: shape of its KV cache on one device, after the tensor-parallel split.
        weights_bytes: bytes of its weights on one device, after the split.
        max_model_len: longest context it was trained for, tokens.
        dtype: name of the type of its weights.
    """

    kv: KvGeometry
    weights_bytes: int
    max_model_len: int
    dtype: str


def read_geometry(
    model_dir: Path, *, tensor_parallel: int = 1, block_tokens: int = 16
) -> ModelGeometry:
    """Read the sizes of the model in a folder.

    Args:
        model_dir: folder with `config.json` and weights.
        tensor_parallel: devices that share it.
        block_tokens: tokens per KV block of the engine that will run it.

    Raises:
        ModelSourceError: a file is missing, or says nothing usable.
    """
    config = _load_config(model_dir)
    text = config.get("text_config")
    if isinstance(text, dict):  # the language part of a multimodal model
        config = {**config, **text}
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    try:
        kv = _read_kv(config, dtype, tensor_parallel, block_tokens)
        max_model_len = int(config.get("max_position_embeddings") or config["n_positions"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise ModelSourceError(
            f"{model_dir / 'config.json'} does not say how large the model is: {exc!r}"
        ) from exc
    return ModelGeometry(
        kv=kv,
        weights_bytes=-(-weight_bytes(model_dir) // tensor_parallel),
        max_model_len=max_model_len,
        dtype=dtype,
    )


def weight_bytes(model_dir: Path) -> int:
    """Bytes of the weight files in a folder; one format counts when several are there."""
    for pattern in _WEIGHT_PATTERNS:
        files = list(model_dir.glob(pattern))
        if files:
            return sum(file.stat().st_size for file in files)
    return 0


def _load_config(model_dir: Path) -> dict[str, Any]:
    path = model_dir / "config.json"
    try:
        config = json.loads(path.read_text())
    except FileNotFoundError:
        raise ModelSourceError(f"{model_dir} holds no model: there is no config.json") from None
    except (OSError, ValueError) as exc:
        raise ModelSourceError(f"{path} cannot be read: {exc}") from exc
    if not isinstance(config, dict):
        raise ModelSourceError(f"{path} holds no object")
    return config


def _read_kv(
    config: dict[str, Any], dtype: str, tensor_parallel: int, block_tokens: int
) -> KvGeometry:
    layers = int(config.get("num_hidden_layers") or config["n_layer"])
    heads = int(config.get("num_attention_heads") or config["n_head"])
    hidden = int(config.get("hidden_size") or config["n_embd"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    window = config.get("sliding_window")
    num_sliding = _count_sliding_layers(config, layers) if window else 0
    rank = config.get("kv_lora_rank")
    latent = int(rank) + int(config.get("qk_rope_head_dim") or 0) if rank else None
    return KvGeometry(
        num_layers=layers,
        # A device holds at least one head; fewer heads than devices are replicated.
        num_kv_heads=max(1, -(-kv_heads // tensor_parallel)),
        head_dim=head_dim,
        bytes_per_element=_DTYPE_BYTES.get(dtype.removeprefix("torch."), 2),
        block_tokens=block_tokens,
        sliding_window=int(window) if num_sliding and window else None,
        num_sliding_layers=num_sliding,
        latent_dim=latent,
    )


def _count_sliding_layers(config: dict[str, Any], layers: int) -> int:
    if config.get("use_sliding_window") is False:
        return 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return sum(kind == "sliding_attention" for kind in kinds)
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:
        return layers - layers // pattern  # every `pattern`-th layer sees everything
    return layers
