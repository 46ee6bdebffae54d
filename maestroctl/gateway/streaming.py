"""Forwards a stream of events, keeps it alive while it waits, and ends it honestly.

Theory of operation. One task does everything in order: run the stage, open the response, forward
chunks, close. A timer beside it looks once per heartbeat interval:

- WAITING (no byte yet): after `heartbeat_s` it opens the response (200, event stream) and sends a
  comment. From then on an error can only be an event.
- FORWARDING: when the last chunk is older than `heartbeat_s` (the engine is suspended, or thinks)
  and ended with a whole event, it sends a comment.
- A write that has been stuck for `stall_s`: the client has stopped reading and holds a place on an
  engine, so the connection is aborted.

A stream that broke off ends with an error event, without ``[DONE]`` and without the last chunk of
the transfer encoding, so neither a client that reads events nor one that counts bytes takes it for
complete. The caller's departure arrives as the cancellation of the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from aiohttp import web

from maestroctl.errors import RequestError, UpstreamFailed
from maestroctl.gateway.exchange import Exchange
from maestroctl.gateway.problems import as_request_error, error_event, error_from_engine
from maestroctl.gateway.replies import StreamAssembler
from maestroctl.gateway.submit import StageReply
from maestroctl.gateway.whole import close_chunks, forward_whole, read_bounded

STALL_S = 120.0
"""A client may leave its receive buffer full this long."""
_FLUSH_S = 10.0
"""What was written may take this long to leave once a broken stream is closed."""
_COMMENT = b": waiting\n\n"
_EVENT_END = b"\n\n"
_DONE = b"data: [DONE]\n\n"

_log = logging.getLogger(__name__)


class CallerGone(Exception):
    """Writing failed: the connection is closed. Its cancellation is on the way, too."""


class StreamRelay:
    """One streaming answer.

    Args:
        headers: of the answer, whatever it will be.
    """

    __slots__ = (
        "_assembler",
        "_beat_task",
        "_exchange",
        "_headers",
        "_heartbeat_s",
        "_last_s",
        "_loop",
        "_noted",
        "_request",
        "_response",
        "_stall_s",
        "_tail",
        "_timer",
        "_writing",
    )

    def __init__(
        self,
        exchange: Exchange,
        request: web.BaseRequest,
        headers: dict[str, str],
        stall_s: float = STALL_S,
    ) -> None:
        self._exchange = exchange
        self._request = request
        self._headers = headers
        self._heartbeat_s = exchange.gateway.heartbeat_s
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._response: web.StreamResponse | None = None
        self._assembler = StreamAssembler(exchange.api)
        self._noted = False
        self._last_s = self._loop.time()
        self._tail = _EVENT_END  # the last bytes written; a comment may follow a whole event only
        self._writing = False
        self._beat_task: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(self._heartbeat_s, self._tick)

    async def run(self) -> web.StreamResponse:
        """Run the stage and forward its answer; returns when that is over, however it ended.

        Raises:
            RequestError: it failed before anything was sent.
            asyncio.CancelledError: the caller went away.
        """
        try:
            reply = await self._exchange.gateway.stages.run(self._exchange.call)
            try:
                return await self._relay(reply)
            finally:
                reply.leave()
        except CallerGone:
            assert self._response is not None
            return self._response
        except asyncio.CancelledError:
            gate, task = self._exchange.gateway.gate, asyncio.current_task()
            if self._response is None or task is None or not gate.is_stopping:
                raise
            task.uncancel()
            return await self._fail(gate.closing_error())
        except Exception as exc:
            if self._response is None:
                raise
            if not isinstance(exc, RequestError):
                _log.exception("stream of stage %s broke", self._exchange.call.stage.stage_id)
            return await self._fail(as_request_error(exc))
        finally:
            self._timer.cancel()
            if self._beat_task is not None:
                self._beat_task.cancel()

    async def _relay(self, reply: StageReply) -> web.StreamResponse:
        if reply.status != 200 or "event-stream" not in reply.content_type:
            return await self._relay_other(reply)
        if self._beat_task is not None:
            await asyncio.wait({self._beat_task})
        if self._response is None:
            self._headers["X-Maestro-Model"] = reply.model
            await self._open(reply.content_type)
        chunks = reply.chunks()
        try:
            await self._forward(chunks)
        finally:
            await close_chunks(chunks)
        self._note()
        self._exchange.learn_usage(reply)
        assert self._response is not None
        try:
            await self._response.write_eof()
        except ConnectionError:
            raise CallerGone from None
        return self._response

    async def _forward(self, chunks: AsyncIterator[bytes]) -> None:
        """The hot loop: an append, a clock reading and a write per chunk."""
        assert self._response is not None
        write, feed, time = self._response.write, self._assembler.feed, self._loop.time
        async for chunk in chunks:
            feed(chunk)
            if chunk.endswith(_DONE):
                # Before the caller knows that this is the end: its next request may come at once.
                self._note()
            self._tail = chunk
            self._last_s = time()
            self._writing = True
            try:
                await write(chunk)
            except ConnectionError:
                raise CallerGone from None
            self._writing = False

    async def _relay_other(self, reply: StageReply) -> web.StreamResponse:
        """Not a stream: the engine's 4xx, or an engine that ignores ``stream``."""
        if self._response is None:
            return await forward_whole(self._exchange, self._request, reply, self._headers)
        body = await read_bounded(reply)
        if reply.status >= 400:
            raise error_from_engine(reply.status, body)
        raise UpstreamFailed("the engine answered a streaming request without a stream")

    def _note(self) -> None:
        if not self._noted:
            self._noted = True
            self._exchange.note_answer(self._assembler.finish())

    # --- the response ---------------------------------------------------------------------------

    async def _open(self, content_type: str) -> None:
        response = web.StreamResponse(
            status=200,
            headers={
                **self._headers,
                "Content-Type": content_type,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # nginx: forward at once
            },
        )
        if self._exchange.gateway.gate.is_draining:
            response.force_close()
        try:
            await response.prepare(self._request)
        except ConnectionError:
            raise CallerGone from None
        self._response = response

    async def _fail(self, error: RequestError) -> web.StreamResponse:
        """Say what happened as the last event, and close without a proper end."""
        assert self._response is not None
        event = error_event(error, self._exchange.api)
        if not self._tail.endswith(_EVENT_END):
            event = _EVENT_END + event
        try:
            await self._response.write(event)
        except ConnectionError:
            pass
        transport = self._request.transport
        if transport is not None:
            transport.close()
            self._loop.call_later(_FLUSH_S, transport.abort)
        return self._response

    # --- the timer ------------------------------------------------------------------------------

    def _tick(self) -> None:
        quiet_s = self._loop.time() - self._last_s
        if self._writing and quiet_s >= self._stall_s:
            if self._request.transport is not None:
                self._request.transport.abort()
            return
        if quiet_s >= self._heartbeat_s and self._may_beat():
            self._last_s = self._loop.time()
            quiet_s = 0.0
            self._beat_task = self._loop.create_task(self._beat())
        self._timer = self._loop.call_later(
            max(self._heartbeat_s - quiet_s, self._heartbeat_s / 4), self._tick
        )

    def _may_beat(self) -> bool:
        is_beating = self._beat_task is not None and not self._beat_task.done()
        return not is_beating and not self._writing and self._tail.endswith(_EVENT_END)

    async def _beat(self) -> None:
        try:
            if self._response is None:
                await self._open("text/event-stream; charset=utf-8")
            assert self._response is not None
            await self._response.write(_COMMENT)
        except (CallerGone, ConnectionError):
            pass  # the task that waits is being cancelled
