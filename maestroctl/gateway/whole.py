"""Forwards an answer that is not a stream.

Engines send it in one piece when it is ready, so it is read to its end before its first byte goes
out: what breaks before that is still a clean 502. Only an answer over `WHOLE_BYTES` is forwarded
while it comes, and then a break in the middle aborts the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from maestroctl.errors import RequestError
from maestroctl.gateway.exchange import Exchange
from maestroctl.gateway.replies import read_answer
from maestroctl.gateway.submit import StageReply

WHOLE_BYTES = 8 << 20
_ERROR_BYTES = 64 << 10


async def close_chunks(chunks: AsyncIterator[bytes]) -> None:
    """Leave an iterator of a reply, wherever it is."""
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()


async def relay_whole(
    exchange: Exchange, request: web.BaseRequest, headers: dict[str, str]
) -> web.StreamResponse:
    """Run the stage and forward its whole answer.

    Raises:
        RequestError: it failed before anything was sent.
    """
    reply = await exchange.gateway.stages.run(exchange.call)
    try:
        return await forward_whole(exchange, request, reply, headers)
    finally:
        reply.leave()


async def forward_whole(
    exchange: Exchange, request: web.BaseRequest, reply: StageReply, headers: dict[str, str]
) -> web.StreamResponse:
    """Forward status, content type and body of a reply."""
    headers["Content-Type"] = reply.content_type
    headers["X-Maestro-Model"] = reply.model
    chunks = reply.chunks()
    try:
        parts, ended = await _read_until(chunks, WHOLE_BYTES)
        if not ended:
            return await _forward_long(request, reply, chunks, parts, headers)
    finally:
        await close_chunks(chunks)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if reply.status == 200:
        # Runs after the answer is on its way and before the loop reads from a socket again, so a
        # caller that goes on at once is known, and the answer does not wait for it.
        asyncio.get_running_loop().call_soon(_learn, exchange, reply, body)
    return web.Response(body=body, status=reply.status, headers=headers)


def _learn(exchange: Exchange, reply: StageReply, body: bytes) -> None:
    if exchange.prefix is not None:
        exchange.note_answer(read_answer(exchange.api, body))
    exchange.learn_usage(reply)


async def read_bounded(reply: StageReply) -> bytes:
    """The beginning of a short body, for an error message."""
    chunks = reply.chunks()
    try:
        parts, _ended = await _read_until(chunks, _ERROR_BYTES)
    finally:
        await close_chunks(chunks)
    return b"".join(parts)


async def _read_until(chunks: AsyncIterator[bytes], limit: int) -> tuple[list[bytes], bool]:
    """Chunks until they end (True) or exceed the limit (False)."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            return parts, False
    return parts, True


async def _forward_long(
    request: web.BaseRequest,
    reply: StageReply,
    chunks: AsyncIterator[bytes],
    parts: list[bytes],
    headers: dict[str, str],
) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers=headers)
    complete = False
    try:
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        async for chunk in chunks:
            await response.write(chunk)
        complete = True
    except (RequestError, ConnectionError):
        pass
    finally:
        if not complete and request.transport is not None:
            request.transport.abort()
    return response
