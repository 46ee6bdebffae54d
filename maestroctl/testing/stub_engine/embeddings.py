"""``/v1/embeddings``: vectors that depend on the text alone.

The request goes through `generation` as a sequence without tokens, so it waits while the engine is
paused and kills an engine whose weights are gone, like any other.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

from maestroctl.testing.stub_engine.generation import Sequence
from maestroctl.testing.stub_engine.http_server import Exchange
from maestroctl.testing.stub_engine.shapes import usage_of
from maestroctl.testing.stub_engine.text import BadRequest, count_tokens, is_token_list, token_ids

EMBEDDING_SIZE = 8
"""Numbers of an embedding."""


def embed(text: str) -> list[float]:
    """A vector of length one with non-negative parts; equal texts have equal vectors."""
    sums = [0.0] * EMBEDDING_SIZE
    for token in token_ids(text) or [1]:
        sums[token % EMBEDDING_SIZE] += 1.0
    norm = sum(value * value for value in sums) ** 0.5
    return [value / norm for value in sums]


class EmbeddingReply:
    """Answers one request for embeddings; the sink of its sequence.

    Raises:
        BadRequest: no usable ``input``.
    """

    def __init__(
        self, exchange: Exchange, answer_id: str, model: str, created_s: int, body: dict[str, Any]
    ) -> None:
        given = body.get("input")
        inputs = given if isinstance(given, list) and not is_token_list(given) else [given]
        if not inputs or any(item is None for item in inputs):
            raise BadRequest.missing("input")
        self.texts = [item if isinstance(item, str) else json.dumps(item) for item in inputs]
        self.prompt_tokens = sum(max(1, count_tokens(text)) for text in self.texts)
        self.sequence = Sequence(answer_id, self.prompt_tokens, 0, "stop", self)
        self._exchange = exchange
        self._head = {"id": answer_id, "object": "list", "created": created_s, "model": model}
        self._as_base64 = body.get("encoding_format") == "base64"

    def on_tokens(self, produced: int) -> None:
        """Never called: there are no tokens."""

    def on_cut(self, produced: int) -> None:
        """Never called: there are no tokens."""

    def on_end(self, produced: int, reason: str) -> None:
        """Answer."""
        del produced, reason
        data = [
            {"index": index, "object": "embedding", "embedding": self._encode(embed(text))}
            for index, text in enumerate(self.texts)
        ]
        usage = usage_of(self.prompt_tokens, 0)
        self._exchange.send_json(200, {**self._head, "data": data, "usage": usage})

    def _encode(self, vector: list[float]) -> list[float] | str:
        if not self._as_base64:
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
