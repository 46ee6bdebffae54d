"""Turns handlers into routes: methods, keys, errors and page protection in one place.

A handler of this package takes ``(gateway, request)`` and returns a response or raises. One route
per path takes every method, so that a wrong one gets a 405 in the shape clients expect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from maestroctl.errors import InvalidRequest, RequestError
from maestroctl.gateway.exchange import Gateway
from maestroctl.gateway.intake import expect_handler, read_body
from maestroctl.gateway.problems import (
    MethodNotAllowed,
    NotFound,
    as_request_error,
    error_response,
)

Handler = Callable[[Gateway, web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


def add_route(
    app: web.Application,
    gateway: Gateway,
    path: str,
    methods: Mapping[str, Handler],
    *,
    is_open: bool = False,
) -> None:
    """Serve `path`.

    Args:
        methods: handler by method; GET serves HEAD, too.
        is_open: no key is asked for.
    """
    guarded = path.startswith("/api")
    table = {**methods, **({"HEAD": methods["GET"]} if "GET" in methods else {})}
    allow = ", ".join(table)

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            handler = table.get(request.method)
            if handler is None:
                raise MethodNotAllowed(
                    f"{request.method} is not possible on {request.path}; try {allow}", allow=allow
                )
            if not is_open:
                gateway.keys.scope_of(request.headers)
            if guarded:
                gateway.guard.check(request)
            return await handler(gateway, request)
        except RequestError as exc:
            return error_response(exc, gateway.response_headers(request))
        except Exception as exc:
            error = as_request_error(exc)
            if error.http_status == 500:
                _log.exception("%s %s failed", request.method, request.path)
            return error_response(error, gateway.response_headers(request))

    _add(app, gateway, path, handle)


def add_inference_route(
    app: web.Application,
    gateway: Gateway,
    path: str,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    """Serve an inference path; `handler` does its own checks, in its own dialect."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            error = MethodNotAllowed(
                f"{request.method} is not possible on {request.path}; try POST", allow="POST"
            )
            return error_response(error, gateway.response_headers(request))
        return await handler(request)

    _add(app, gateway, path, handle)


def add_catch_all(app: web.Application, gateway: Gateway) -> None:
    """404 for every other path."""

    async def handle(request: web.Request) -> web.StreamResponse:
        path = request.path[:200]
        error = NotFound(f"there is no {path!r} here; inference is below /v1/, control below /api/")
        return error_response(error, gateway.response_headers(request))

    _add(app, gateway, "/{anything:.*}", handle)


def _add(
    app: web.Application,
    gateway: Gateway,
    path: str,
    handle: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    app.router.add_route("*", path, handle, expect_handler=expect_handler(gateway.max_body_bytes))


def json_response(
    gateway: Gateway, request: web.Request, document: Any, *, status: int = 200
) -> web.Response:
    """A JSON answer; dataclasses and enums are written as what they hold."""
    headers = gateway.response_headers(request)
    headers["Content-Type"] = "application/json"
    return web.Response(body=msgspec.json.encode(document), status=status, headers=headers)


async def read_object(gateway: Gateway, request: web.Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        InvalidRequest: it is something else.
    """
    data = await read_body(request, gateway.max_body_bytes)
    try:
        return _OBJECT.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"a JSON object was expected: {exc}") from exc
    except RecursionError as exc:
        raise InvalidRequest("the body is nested too deeply") from exc


_OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


def query_int(request: web.Request, name: str, default: int, most: int) -> int:
    """A positive number from the query.

    Raises:
        InvalidRequest: not a number, or not between 1 and `most`.
    """
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= most):
        raise InvalidRequest(f"'{name}' must be a number from 1 to {most}", param=name)
    return int(text)


async def stream_events(gateway: Gateway, request: web.Request, events: Any) -> web.StreamResponse:
    """Send an iterator of dicts as server-sent events until it ends or the reader leaves."""
    response = web.StreamResponse(
        headers={
            **gateway.response_headers(request),
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
    )
    watcher = gateway.gate.watch()
    # Asked for the first event before the reader is told that the stream is open, so that what
    # happens from then on is in it.
    upcoming: asyncio.Task[dict[str, Any]] | None = asyncio.ensure_future(anext(events))
    try:
        await asyncio.sleep(0)
        await response.prepare(request)
        await response.write(b": open\n\n")
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({upcoming}, timeout=gateway.heartbeat_s)
            if not done:
                await response.write(b": waiting\n\n")
                continue
            event = upcoming.result()
            upcoming = None
            await response.write(_event_bytes(event))
    except (StopAsyncIteration, ConnectionError):
        pass
    except asyncio.CancelledError:
        if not gateway.gate.is_stopping:
            raise
        watcher.uncancel()
    finally:
        gateway.gate.unwatch(watcher)
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait({upcoming})
            if not upcoming.cancelled():
                upcoming.exception()  # the reader left as it ended: nobody else looks at it
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
    return response


def _event_bytes(event: dict[str, Any]) -> bytes:
    name = str(event.get("type", "message")).replace("\n", " ").replace("\r", " ")
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
