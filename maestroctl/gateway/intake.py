"""Reading a request body within its limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from maestroctl.domain.units import format_bytes
from maestroctl.errors import InvalidRequest, RequestError, RequestTooLarge

BODY_TIMEOUT_S = 120.0
"""For a whole body: 32 MiB at 0.27 MiB/s. A client slower than this holds a place for nothing."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class RequestTimeout(RequestError):
    """408: the body did not come."""

    http_status, code, type = 408, "request_timeout", "invalid_request_error"


def check_declared_size(request: web.BaseRequest, limit: int) -> None:
    """Refuse by ``Content-Length``, before a byte of the body is read.

    Raises:
        RequestTooLarge: the declared length is over the limit.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise _too_large(limit)


async def read_body(
    request: web.BaseRequest, limit: int, timeout_s: float = BODY_TIMEOUT_S
) -> bytes:
    """The body, at most `limit` bytes of it.

    Raises:
        RequestTooLarge: it is longer, whatever the headers said.
        InvalidRequest: it broke off, or its encoding is broken.
        RequestTimeout: it did not come in time.
    """
    check_declared_size(request, limit)
    content = request.content
    if content.is_eof() and content.exception() is None:
        # The usual case: head and body came in one piece, nothing is awaited.
        data = content.read_nowait()
        if len(data) > limit:
            raise _too_large(limit)
        return data
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_slowly(request, limit)
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {timeout_s:.0f} s") from None
    except (web.RequestPayloadError, HttpProcessingError) as exc:
        raise InvalidRequest("the body broke off or its transfer encoding is broken") from exc


async def _read_slowly(request: web.BaseRequest, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while chunk := await request.content.readany():
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        parts.append(chunk)
    return b"".join(parts)


def expect_handler(limit: int) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """An aiohttp expect handler that says 100 only to bodies that will be read."""

    async def expect(request: web.Request) -> web.StreamResponse | None:
        length = request.content_length
        will_be_read = length is None or length <= limit
        is_understood = request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
        if will_be_read and is_understood and request.version == HttpVersion11:
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0  # the answer itself has not begun
        return None

    return expect


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body is over the limit of {format_bytes(limit)}",
        hint="Raise [coordinator] max_body_bytes if this is meant.",
    )
