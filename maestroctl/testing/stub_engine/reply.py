"""Writes one answer as its tokens appear: the sink of a sequence."""

from __future__ import annotations

from maestroctl.testing.stub_engine.engine import StubEngine
from maestroctl.testing.stub_engine.generation import Sequence
from maestroctl.testing.stub_engine.http_server import Exchange, dump_json
from maestroctl.testing.stub_engine.shapes import Shape
from maestroctl.testing.stub_engine.text import OutputPlan


class Reply:
    """One answer, streamed or whole. Owner: the exchange.

    Args:
        engine: where the sequence runs.
        exchange: the open request.
        plan: the whole output.
        shape: how it looks on the wire.
        stream: events as they come, or one answer at the end.
    """

    __slots__ = ("_engine", "_exchange", "_plan", "_sent", "_shape", "_stream", "sequence")

    def __init__(
        self, engine: StubEngine, exchange: Exchange, plan: OutputPlan, shape: Shape, stream: bool
    ) -> None:
        self._engine = engine
        self._exchange = exchange
        self._plan = plan
        self._shape = shape
        self._stream = stream
        self._sent = 0  # tokens written so far
        self.sequence: Sequence | None = None

    def on_tokens(self, produced: int) -> None:
        """Stream what is new, unless the peer reads too slowly: then it comes merged later."""
        if not self._stream or not self._exchange.writable:
            return
        step = self._engine.options.tokens_per_chunk
        chunks = self._opening()
        while produced - self._sent >= step:
            chunks.append(self._next_chunk(step))
        if chunks:
            self._exchange.write_chunks(chunks)

    def on_end(self, produced: int, reason: str) -> None:
        """Finish the answer."""
        if not self._stream:
            text = "".join(self._plan.tokens[:produced])
            self._exchange.send_json(200, self._shape.whole(text, reason, produced))
            return
        chunks = self._opening()
        step = self._engine.options.tokens_per_chunk
        # With "stop" a last token carries no text of its own; else the last text shares its chunk.
        keep = 0 if reason in ("stop", "tool_calls") else 1
        while self._sent < produced - keep:
            chunks.append(self._next_chunk(min(step, produced - keep - self._sent)))
        rest = "".join(self._plan.tokens[self._sent : produced])
        chunks.extend(self._shape.end(rest, reason, produced))
        self._exchange.write_chunks(chunks)
        self._exchange.end_stream()

    def on_cut(self, produced: int) -> None:
        """Break off: a stream after its tokens so far, a whole answer in its middle."""
        if self._stream:
            self._exchange.write_chunks([*self._opening(), *self._remaining(produced)])
            self._exchange.cut()
        else:
            text = "".join(self._plan.tokens[:produced])
            self._exchange.cut(body=dump_json(self._shape.whole(text, "stop", produced)))

    def on_gone(self) -> None:
        """The client left: free the slot at once."""
        if self.sequence is not None:
            self._engine.generation.finish(self.sequence, None)

    def on_writable(self) -> None:
        """The client reads again: send what has been held back."""
        if self.sequence is not None:
            self.on_tokens(self.sequence.produced)

    def _opening(self) -> list[bytes]:
        if self._exchange.is_streaming:
            return []
        self._exchange.start_stream()
        return list(self._shape.begin())

    def _remaining(self, produced: int) -> list[bytes]:
        return [self._next_chunk(1) for _ in range(self._sent, produced)]

    def _next_chunk(self, count: int) -> bytes:
        start, self._sent = self._sent, self._sent + count
        tokens = self._plan.tokens
        text = tokens[start] if count == 1 else "".join(tokens[start : self._sent])
        return self._shape.delta(text, self._sent)
