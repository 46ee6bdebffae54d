"""Sizes read from `config.json` and the weight files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maestroctl.errors import ModelSourceError
from maestroctl.live.models.geometry import read_geometry

_QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
    "sliding_window": None,
}


def _model(folder: Path, **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(_QWEN | changes))
    (folder / "a.safetensors").write_bytes(b"x" * 1000)
    (folder / "b.safetensors").write_bytes(b"x" * 1001)
    return folder


def test_grouped_query_model(tmp_path: Path) -> None:
    geometry = read_geometry(_model(tmp_path), block_tokens=128)
    assert (geometry.kv.num_layers, geometry.kv.num_kv_heads, geometry.kv.head_dim) == (36, 8, 128)
    assert geometry.kv.bytes_per_element == 2
    assert geometry.kv.block_tokens == 128
    assert geometry.weights_bytes == 2001
    assert geometry.max_model_len == 40960


def test_tensor_parallel_splits_heads_and_weights_but_never_below_one_head(tmp_path: Path) -> None:
    _model(tmp_path)
    assert read_geometry(tmp_path, tensor_parallel=4).kv.num_kv_heads == 2
    assert read_geometry(tmp_path, tensor_parallel=16).kv.num_kv_heads == 1
    assert read_geometry(tmp_path, tensor_parallel=2).weights_bytes == 1001


def test_head_dim_is_derived_when_it_is_not_stated(tmp_path: Path) -> None:
    geometry = read_geometry(_model(tmp_path, head_dim=None, num_key_value_heads=None))
    assert geometry.kv.head_dim == 128
    assert geometry.kv.num_kv_heads == 32


@pytest.mark.parametrize(
    ("changes", "sliding"),
    [
        ({"sliding_window": 4096}, 36),
        ({"sliding_window": 4096, "use_sliding_window": False}, 0),
        ({"sliding_window": 512, "sliding_window_pattern": 6}, 30),
        ({"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 18}, 18),
    ],
)
def test_sliding_layers_are_counted(tmp_path: Path, changes: dict[str, Any], sliding: int) -> None:
    kv = read_geometry(_model(tmp_path, **changes)).kv
    assert kv.num_sliding_layers == sliding
    assert (kv.sliding_window is not None) == (sliding > 0)


def test_latent_attention_keeps_one_vector_per_token(tmp_path: Path) -> None:
    kv = read_geometry(_model(tmp_path, kv_lora_rank=512, qk_rope_head_dim=64)).kv
    assert kv.latent_dim == 576


def test_language_part_of_a_multimodal_model_counts(tmp_path: Path) -> None:
    inner = {"num_hidden_layers": 4, "max_position_embeddings": 99}
    geometry = read_geometry(_model(tmp_path, text_config=inner))
    assert geometry.kv.num_layers == 4
    assert geometry.max_model_len == 99


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_hidden_layers": "many"}'])
def test_useless_config_is_a_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelSourceError, match=r"config\.json"):
        read_geometry(tmp_path)
