"""Chimera's own router encoder: ModernBERT with a multi-label head.

Needs ``torch`` and ``transformers`` and a fine-tuned checkpoint folder; nothing is fetched. The
label names of the checkpoint are the model names.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from maestroctl.errors import ArtifactMissing, SchemaMismatch

_MAX_TOKENS = 4096


class ModernBertRouter:
    """Answers the same call as `semantic_router.SemanticRouter`.

    Args:
        folder: a saved ``ModernBertForSequenceClassification`` with its tokenizer.

    Raises:
        ArtifactMissing: no such folder, or the libraries are not installed.
        SchemaMismatch: the checkpoint has another architecture.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise ArtifactMissing(f"no ModernBERT checkpoint in {folder}")
        try:
            import torch
            from transformers import AutoModelForSequenceClassification, AutoTokenizer
        except ImportError as exc:
            raise ArtifactMissing(
                "the ModernBERT router needs torch and transformers",
                hint="pip install torch transformers",
            ) from exc
        self._torch: Any = torch
        self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        model: Any = AutoModelForSequenceClassification.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True
        )
        if model.config.model_type != "modernbert":
            raise SchemaMismatch(f"{folder} holds a {model.config.model_type}, not a modernbert")
        self._model: Any = model.eval()
        self.models: tuple[str, ...] = tuple(
            str(model.config.id2label[k]) for k in range(model.config.num_labels)
        )

    def confidence(self, text: str, models: Iterable[str]) -> dict[str, float]:
        """One independent sigmoid per model; models without a label are left out."""
        limit = min(_MAX_TOKENS, int(self._model.config.max_position_embeddings))
        tokens = self._tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)
        with self._torch.inference_mode():
            logits = self._model(**tokens).logits[0]
        chances = self._torch.sigmoid(logits).tolist()
        wanted = set(models)
        return {
            model: float(chance)
            for model, chance in zip(self.models, chances, strict=True)
            if model in wanted
        }
