"""Makes a tiny random ModernBERT and asks the router that loads it; what came out as JSON.

``python tests/support/tiny_modernbert.py FOLDER``, in an environment with torch and transformers.
It imports nothing of ours that such an environment lacks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers

from maestroctl.errors import SchemaMismatch
from maestroctl.predict.modernbert import ModernBertRouter

LIMIT = 64
_WORDS = ("[UNK]", "[PAD]", "add", "one", "and", "two")
_SIZES: dict[str, Any] = {
    "vocab_size": len(_WORDS),
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": LIMIT,
    "pad_token_id": 1,
    "id2label": {0: "small", 1: "large"},
    "label2id": {"small": 0, "large": 1},
}


def make_checkpoint(folder: Path) -> Any:
    """A checkpoint with a tokenizer of six words; its model."""
    raw = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: k for k, word in enumerate(_WORDS)}, unk_token="[UNK]")
    )
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    config = transformers.ModernBertConfig(**_SIZES, **special)
    model = transformers.ModernBertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


def sigmoids_of(model: Any, text: str) -> dict[str, float]:
    """The same by hand: the first `LIMIT` words, one sigmoid per label."""
    numbers = [_WORDS.index(word) for word in text.split()[:LIMIT]]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([numbers])).logits[0]
    return {"small": float(torch.sigmoid(logits[0])), "large": float(torch.sigmoid(logits[1]))}


def refused_architecture(folder: Path) -> str:
    """What is said of a checkpoint of another architecture."""
    make_checkpoint(folder)
    config = transformers.BertConfig(**_SIZES)
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    try:
        ModernBertRouter(folder)
    except SchemaMismatch as exc:
        return exc.message
    return ""


def main() -> None:
    """Print what the router said, and what it should have said."""
    folder = Path(sys.argv[1])
    model = make_checkpoint(folder / "modernbert")
    router = ModernBertRouter(folder / "modernbert")
    long = "add one and two " * 200
    report = {
        "short": router.confidence("add one", ["large", "small", "unknown"]),
        "short_by_hand": sigmoids_of(model, "add one"),
        "long": router.confidence(long, ["large", "small"]),
        "long_by_hand": sigmoids_of(model, long),
        "one": router.confidence("add one", ["large"]),
        "refused": refused_architecture(folder / "bert"),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
