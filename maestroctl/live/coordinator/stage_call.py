"""One stage on its way: waits for the core's word, sends it to a node, hands the answer back.

The task that calls `StageCalls.run` does all of it. What the core decides comes in as effects,
whatever moment it is: a `DispatchStage` opens a request to the node, a `WithdrawStage` or a
`ResolveStage` takes it back by cancelling the wait. What happens on the way goes out as events.
The answer's first byte is the point of no return: before it a failed attempt may be retried (the
core decides), after it every end but a complete answer is an error to the caller.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from maestroctl.domain.ids import ModelName, NodeName, StageId
from maestroctl.domain.messages import StageHeaders, StageRefusal
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.errors import (
    MODEL_UNAVAILABLE,
    Overloaded,
    RequestError,
    Unavailable,
    UpstreamFailed,
)
from maestroctl.gateway.submit import StageCall
from maestroctl.live.coordinator.answer import (
    BrokenAnswer,
    StreamWatcher,
    upstream_error,
    watch_whole,
)
from maestroctl.live.http1.client import HttpPool, Response
from maestroctl.scheduler.effects import DispatchStage, ResolveStage, WithdrawStage
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StageCancelled,
    StageEnded,
    StageProgressed,
    StageRefused,
    StageStarted,
)

StageEffect = DispatchStage | WithdrawStage | ResolveStage


class _TakenBack(Exception):
    """The core withdrew or resolved the stage while its attempt was under way."""


@dataclass(slots=True)
class PendingStage:
    """A stage between its arrival and its last byte. Owner: the task that runs it.

    Attributes:
        inbox: effects of the core not yet looked at.
        task: the task to interrupt; None while nobody waits.
        taken_back: the interrupt is ours, not the caller's.
        resolution: how it ended, once it has.
    """

    call: StageCall
    inbox: deque[StageEffect] = field(default_factory=deque)
    waiter: asyncio.Future[None] | None = None
    task: asyncio.Task[Any] | None = None
    taken_back: bool = False
    resolution: ResolveStage | None = None
    dispatch: DispatchStage | None = None
    error: RequestError | None = None

    def deliver(self, effect: StageEffect) -> None:
        """Take an effect of the core."""
        if isinstance(effect, ResolveStage):
            self.resolution = effect
        if isinstance(effect, DispatchStage):
            self.inbox.append(effect)
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)
        elif self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)
        elif self.task is not None and not self.taken_back:
            self.taken_back = True
            self.task.cancel()


class StageCalls:
    """All stages that are on their way.

    Args:
        post: gives an event to the core.
        pool: connections to a node's stage socket.
        prepare_body: the request as the engine of the chosen model wants it.
        on_activation: hears what a stage waited for on its node (``wake``, 2.4 seconds).
    """

    def __init__(
        self,
        post: Callable[[CoordinatorEvent], None],
        pool: Callable[[NodeName], HttpPool],
        prepare_body: Callable[[StageCall, DispatchStage], Mapping[str, Any]],
        on_activation: Callable[[StageId, str, float], None],
    ) -> None:
        self._on_activation = on_activation
        self._post = post
        self._pool = pool
        self._prepare_body = prepare_body
        self._pending: dict[StageId, PendingStage] = {}
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def get(self, stage_id: StageId) -> PendingStage | None:
        """The stage, while it is on its way."""
        return self._pending.get(stage_id)

    def deliver(self, effect: StageEffect) -> None:
        """Hand an effect of the core to the task of its stage."""
        pending = self._pending.get(effect.stage_id)
        if pending is not None:
            pending.deliver(effect)

    async def run(self, call: StageCall, arrived: CoordinatorEvent) -> Answer:
        """Drive the stage until the first byte of its answer is there.

        Raises:
            RequestError: it was rejected, cannot be served, or failed before its first byte.
        """
        stage_id = call.stage.stage_id
        pending = PendingStage(call)
        self._pending[stage_id] = pending
        try:
            self._post(arrived)
            while True:
                dispatch = await self._next_dispatch(pending)
                pending.dispatch = dispatch
                answer = await self._attempt(pending, dispatch)
                if answer is not None:
                    return answer
        except BaseException as exc:
            self.forget(stage_id)
            if isinstance(exc, asyncio.CancelledError):
                self._post(StageCancelled(stage_id))
            raise

    def forget(self, stage_id: StageId) -> None:
        """The stage is over."""
        self._pending.pop(stage_id, None)
        if not self._pending:
            self._emptied.set()

    async def wait_empty(self) -> None:
        """Return when no stage is on its way."""
        while self._pending:
            self._emptied.clear()
            await self._emptied.wait()

    async def _next_dispatch(self, pending: PendingStage) -> DispatchStage:
        while not pending.inbox:
            if pending.resolution is not None:
                raise _error_of(pending.resolution, pending.error)
            pending.waiter = asyncio.get_running_loop().create_future()
            try:
                await pending.waiter
            finally:
                pending.waiter = None
        effect = pending.inbox.popleft()
        assert isinstance(effect, DispatchStage)
        return effect

    async def _attempt(self, pending: PendingStage, dispatch: DispatchStage) -> Answer | None:
        """One attempt on one node; None when the core has to decide again."""
        answer = Answer(self._post, self.forget, pending, dispatch)
        try:
            async with interruptible(pending):
                upstream = answer.upstream = await self._send(pending.call, dispatch)
                is_stream = _is_good_stream(upstream)
                body = await (upstream.readany() if is_stream else upstream.read())
        except _TakenBack:
            answer.close()
            return None
        except OSError as exc:
            answer.close()
            answer.failed(UpstreamFailed(f"node {dispatch.node}: {exc!r}"))
            return None
        except BaseException:
            answer.close()
            raise
        if StageHeaders.ACTIVATION in upstream.headers:
            kind, _, seconds = upstream.headers[StageHeaders.ACTIVATION].partition(" ")
            self._on_activation(dispatch.stage_id, kind, float(seconds))
        return self._begin(answer, body) if is_stream else self._judge(answer, upstream, body)

    def _begin(self, answer: Answer, first: bytes) -> Answer | None:
        """A stream: it has begun once a byte of it is there that is not its end."""
        try:
            answer.begin(first)
        except BrokenAnswer as exc:
            answer.close()
            answer.failed(exc, outcome_of(exc))
            return None
        self._post(StageStarted(answer.dispatch.stage_id, answer.dispatch.attempt))
        return answer

    async def _send(self, call: StageCall, dispatch: DispatchStage) -> Response:
        body = msgspec.json.encode(self._prepare_body(call, dispatch))
        return await self._pool(dispatch.node).post(call.path, body, stage_headers(dispatch))

    def _judge(self, answer: Answer, upstream: Response, body: bytes) -> Answer | None:
        """A whole body: only what can be forwarded is returned."""
        dispatch = answer.dispatch
        if StageHeaders.REFUSED in upstream.headers:
            self._post(_refused(dispatch, msgspec.json.decode(body, type=StageRefusal)))
            return None
        if StageHeaders.ABORTED in upstream.headers:
            outcome = Outcome(upstream.headers[StageHeaders.ABORTED])
            answer.failed(UpstreamFailed(body.decode(errors="replace")), outcome)
            return None
        # 401 and 403: it is our key that the engine refuses, never the caller's.
        if upstream.status >= 500 or upstream.status in (401, 403):
            answer.failed(upstream_error(upstream.status, body))
            return None
        if upstream.status < 400:
            try:
                answer.usage, answer.tool_called = watch_whole(body)
            except BrokenAnswer as exc:
                answer.failed(exc)
                return None
        answer.body = body
        self.forget(dispatch.stage_id)
        self._post(StageStarted(dispatch.stage_id, dispatch.attempt))
        answer.ended(Outcome.FINISHED if upstream.status < 400 else Outcome.INVALID, started=True)
        return answer


class Answer:
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
        except _TakenBack:
            self._over = True
            resolution = self.pending.resolution
            raise (
                _error_of(resolution, None)
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


class interruptible:
    """Within it the core may take the stage back: then `_TakenBack` is raised inside."""

    __slots__ = ("_pending",)

    def __init__(self, pending: PendingStage) -> None:
        self._pending = pending

    async def __aenter__(self) -> None:
        if self._pending.resolution is not None:
            raise _TakenBack
        self._pending.task = asyncio.current_task()

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, tb: object) -> None:
        pending = self._pending
        task, pending.task = pending.task, None
        if pending.taken_back and task is not None:
            pending.taken_back = False
            if task.uncancel() == 0 and kind is asyncio.CancelledError:
                raise _TakenBack


def outcome_of(broken: BrokenAnswer) -> Outcome:
    """What a broken answer counts as; the daemon names the outcome when it ended it itself."""
    return Outcome(broken.code) if broken.code in set(Outcome) else Outcome.FAILED


def stage_headers(dispatch: DispatchStage) -> dict[str, str]:
    """The dispatch as the node daemon reads it."""
    return {
        "Content-Type": "application/json",
        StageHeaders.STAGE: dispatch.stage_id,
        StageHeaders.ATTEMPT: str(dispatch.attempt),
        StageHeaders.MODEL: json.dumps(dispatch.model),
        StageHeaders.COMMAND: f"{dispatch.epoch}.{dispatch.seq}",
        StageHeaders.TOKENS: f"{dispatch.prompt_tokens}.{dispatch.booked_tokens}",
        StageHeaders.CLASS: dispatch.service_class.value,
        StageHeaders.KEY: repr(dispatch.key),
    }


def _refused(dispatch: DispatchStage, refusal: StageRefusal) -> StageRefused:
    return StageRefused(
        dispatch.stage_id,
        dispatch.attempt,
        refusal.reason,
        shortfall_bytes=dict(refusal.shortfall_bytes),  # type: ignore[arg-type]
        permanent=refusal.permanent,
        retry_in_s=refusal.retry_in_s,
    )


def _is_good_stream(upstream: Response) -> bool:
    return upstream.status < 400 and upstream.content_type == "text/event-stream"


def _error_of(resolution: ResolveStage | None, cause: RequestError | None) -> RequestError:
    """The error that the caller of a stage without an answer gets."""
    if resolution is None:
        return BrokenAnswer("the answer was withdrawn")
    reason = resolution.reason or resolution.outcome.value
    match resolution.outcome:
        case Outcome.REJECTED:
            return Overloaded(reason, retry_after_s=resolution.retry_after_s or 1.0)
        case Outcome.UNAVAILABLE if resolution.retry_after_s is None:
            return Unavailable(reason, code=MODEL_UNAVAILABLE)
        case Outcome.UNAVAILABLE:
            return Unavailable(
                reason, code=resolution.outcome.value, retry_after_s=resolution.retry_after_s
            )
        case Outcome.INTERRUPTED:
            return Unavailable(reason, code=resolution.outcome.value, retry_after_s=5.0)
        case Outcome.FAILED if cause is not None:
            return cause
        case _:
            return UpstreamFailed(reason, code=resolution.outcome.value)
