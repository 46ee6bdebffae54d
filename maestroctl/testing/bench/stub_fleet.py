"""A fleet of stub engines, as a fleet file of the product, and a model folder to go with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 128,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "vocab_size": 1000,
}
"""Geometry of a model with 1 KiB of KV per token."""


def write_tiny_model(folder: Path) -> Path:
    """A model folder that has the right shape and next to no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL_CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\0" * 4096)
    return folder


def stub_fleet_toml(folder: Path, models: Sequence[str], *, max_batch: int, kv_cache: str) -> str:
    """A fleet file: this machine, and one stub engine per model.

    Args:
        folder: takes the model folder and the state.
        models: names of the models.
        max_batch: sequences that each engine takes at once.
        kv_cache: KV cache of each engine, really allocated by the stub.
    """
    tiny = write_tiny_model(folder / "tiny-model")
    lines = [
        "[coordinator]",
        f'state = "sqlite:///{folder}/state.db"',
        "[[node]]",
        'name = "local"',
        "[engine.stub]",
        'kind = "vllm-cpu"',
        f'python = "{sys.executable}"',
        'entrypoint = "maestroctl.testing.stub_engine"',
        'version = "0.32.0"',
    ]
    for model in models:
        lines += [
            "[[model]]",
            f'name = "{model}"',
            f'source = "path:{tiny}"',
            'engine = "stub"',
            "max_model_len = 2048",
            f'kv_cache = "{kv_cache}"',
            f"max_batch = {max_batch}",
        ]
    return "\n".join(lines) + "\n"
