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
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from maestroctl.domain.ids import NodeName, StageId
from maestroctl.domain.messages import StageHeaders, StageRefusal
from maestroctl.domain.outcome import Outcome
from maestroctl.errors import UpstreamFailed
from maestroctl.gateway.submit import StageCall
from maestroctl.live.coordinator.answer_watcher import BrokenAnswer, upstream_error, watch_whole
from maestroctl.live.coordinator.pending_stage import (
    PendingStage,
    StageEffect,
    TakenBack,
    error_of,
    interruptible,
)
from maestroctl.live.coordinator.stage_answer import StageAnswer, outcome_of
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.http1.connection import Response
from maestroctl.scheduler.effects import DispatchStage
from maestroctl.scheduler.events import (
    CoordinatorEvent,
    StageCancelled,
    StageRefused,
    StageStarted,
)


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

    async def run(self, call: StageCall, arrived: CoordinatorEvent) -> StageAnswer:
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
                raise error_of(pending.resolution, pending.error)
            pending.waiter = asyncio.get_running_loop().create_future()
            try:
                await pending.waiter
            finally:
                pending.waiter = None
        effect = pending.inbox.popleft()
        assert isinstance(effect, DispatchStage)
        return effect

    async def _attempt(self, pending: PendingStage, dispatch: DispatchStage) -> StageAnswer | None:
        """One attempt on one node; None when the core has to decide again."""
        answer = StageAnswer(self._post, self.forget, pending, dispatch)
        try:
            async with interruptible(pending):
                upstream = answer.upstream = await self._send(pending.call, dispatch)
                is_stream = _is_good_stream(upstream)
                body = await (upstream.readany() if is_stream else upstream.read())
        except TakenBack:
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

    def _begin(self, answer: StageAnswer, first: bytes) -> StageAnswer | None:
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

    def _judge(self, answer: StageAnswer, upstream: Response, body: bytes) -> StageAnswer | None:
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
