"""The answer of one attempt, from its first byte to its last: bytes out, news to the core.

What it says of itself (usage, tool calls, errors in a stream) `answer_watcher.StreamWatcher` reads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from maestroctl.domain.ids import ModelName, StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.errors import RequestError
from maestroctl.live.coordinator.answer_watcher import BrokenAnswer, StreamWatcher
from maestroctl.live.coordinator.pending_stage import (
    PendingStage,
    TakenBack,
    error_of,
    interruptible,
)
from maestroctl.live.http1.connection import Response
from maestroctl.scheduler.effects import DispatchStage
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StageCancelled,
    StageEnded,
    StageProgressed,
)


class StageAnswer:
    """An answer whose first byte has come: a `StageReply`.

    Attributes:
        body: all of a non-streaming answer; None for a stream.
    """

    __slots__ = (
        "_first",
        "_forget",
        "_over",
        "_post",
        "_tell_at",
        "_watcher",
        "body",
        "dispatch",
        "pending",
        "tool_called",
        "upstream",
        "usage",
    )

    def __init__(
        self,
        post: Callable[[CoordinatorEvent], None],
        forget: Callable[[StageId], None],
        pending: PendingStage,
        dispatch: DispatchStage,
    ) -> None:
        self._post = post
        self._forget = forget
        self._over = False
        self._watcher = StreamWatcher(wants_usage=pending.call.wants_usage)
        self._first = b""
        self.pending = pending
        self.dispatch = dispatch
        self.upstream: Response | None = None
        self.body: bytes | None = None
        self.usage: Usage | None = None
        self.tool_called: bool | None = None
        # The core hears of a running stage when it passes what was booked, then at every double.
        self._tell_at = max(1, dispatch.booked_tokens - dispatch.prompt_tokens)

    @property
    def status(self) -> int:
        """Of the engine's answer."""
        assert self.upstream is not None
        return self.upstream.status

    @property
    def content_type(self) -> str:
        """Of the engine's answer, with its parameters."""
        assert self.upstream is not None
        return self.upstream.headers.get("content-type", "application/json")

    @property
    def model(self) -> ModelName:
        """The model that answers."""
        return self.dispatch.model

    async def chunks(self) -> AsyncIterator[bytes]:
        """See `StageReply.chunks`."""
        if self.body is not None:
            yield self.body
            return
        try:
            async for chunk in self._stream():
                yield chunk
        finally:
            self.leave()

    def leave(self) -> None:
        """See `StageReply.leave`."""
        self.close()
        if not self._over:
            self._over = True
            if self._watcher.num_events:
                self.progressed(self._watcher.num_events)
            self._post(StageCancelled(self.dispatch.stage_id))
        self._forget(self.dispatch.stage_id)

    def begin(self, first: bytes) -> None:
        """Take the first bytes of a stream.

        Raises:
            BrokenAnswer: they are its end.
        """
        if not first:
            raise BrokenAnswer("the engine closed its answer before it began")
        self._first = self._watcher.feed(first)

    async def _stream(self) -> AsyncIterator[bytes]:
        assert self.upstream is not None
        watcher = self._watcher
        try:
            clean = self._first
            while True:
                if clean:
                    yield clean
                async with interruptible(self.pending):
                    chunk = await self.upstream.readany()
                if not chunk:
                    break
                clean = watcher.feed(chunk)
                if watcher.num_events > self._tell_at:
                    self._tell_at = 2 * watcher.num_events
                    self.progressed(watcher.num_events)
            watcher.end()
        except BrokenAnswer as exc:
            self.usage = watcher.usage
            self.ended(outcome_of(exc), started=True, reason=str(exc))
            raise
        except OSError as exc:
            self.ended(Outcome.FAILED, started=True, reason=f"the answer broke off: {exc}")
            raise BrokenAnswer("the engine's answer broke off") from exc
        except TakenBack:
            self._over = True
            resolution = self.pending.resolution
            raise (
                error_of(resolution, None)
                if resolution
                else BrokenAnswer("the answer was withdrawn")
            ) from None
        self.usage = watcher.usage
        self.tool_called = watcher.tool_called
        self.ended(Outcome.FINISHED, started=True)

    def progressed(self, output_tokens: int) -> None:
        """At least about this many tokens came so far."""
        self._post(StageProgressed(self.dispatch.stage_id, self.dispatch.attempt, output_tokens))

    def ended(self, outcome: Outcome, *, started: bool, reason: str = "") -> None:
        """Tell the core how this attempt ended."""
        self._over = True
        self._post(
            StageEnded(
                self.dispatch.stage_id,
                self.dispatch.attempt,
                outcome,
                started,
                self.usage,
                reason,
                self.tool_called,
            )
        )

    def failed(self, error: RequestError, outcome: Outcome = Outcome.FAILED) -> None:
        """This attempt ended before its first byte; the caller gets `error` if it was the last."""
        self.pending.error = error
        self.ended(outcome, started=False, reason=str(error))

    def close(self) -> None:
        """Close the request to the node; a complete one gives its connection back instead."""
        if self.upstream is not None:
            self.upstream.close()


def outcome_of(broken: BrokenAnswer) -> Outcome:
    """What a broken answer counts as; the daemon names the outcome when it ended it itself."""
    return Outcome(broken.code) if broken.code in set(Outcome) else Outcome.FAILED
