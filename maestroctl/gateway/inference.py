"""The inference endpoints, from the request's first byte to the answer's last.

In order: key, place (or 429/503), body, checks, descriptor, then the whole or the streaming relay.
Whatever goes wrong before the first byte of the answer becomes an error body in the dialect of the
API. The place is given back however it ends.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from maestroctl.errors import RequestError
from maestroctl.gateway.exchange import Gateway, open_exchange
from maestroctl.gateway.identity import PathClaims
from maestroctl.gateway.intake import read_body
from maestroctl.gateway.openai_schema import Api, parse_body
from maestroctl.gateway.problems import as_request_error, error_response
from maestroctl.gateway.streaming import StreamRelay
from maestroctl.gateway.whole import relay_whole

CLIENT_GONE = 499
"""Status under which departures are counted; nobody is there to receive it."""

_NO_CLAIMS = PathClaims()

_log = logging.getLogger(__name__)


async def serve_inference(gateway: Gateway, api: Api, request: web.Request) -> web.StreamResponse:
    """Answer one inference request."""
    headers = gateway.response_headers(request)
    status = CLIENT_GONE
    try:
        response = await _admit(gateway, api, request, headers)
        status = response.status
    except RequestError as exc:
        response = error_response(exc, headers, api)
        status = exc.http_status
    except Exception as exc:
        _log.exception("request %s failed", headers["X-Request-Id"])
        response = error_response(as_request_error(exc), headers, api)
        status = response.status
    finally:
        gateway.gate.outcomes[api, status] += 1
    return response


async def _admit(
    gateway: Gateway, api: Api, request: web.Request, headers: dict[str, str]
) -> web.StreamResponse:
    scope = gateway.keys.scope_of(request.headers)
    task = gateway.gate.enter()
    try:
        return await _answer(gateway, api, request, scope, headers)
    except asyncio.CancelledError:
        if not gateway.gate.is_stopping:
            raise
        task.uncancel()
        raise gateway.gate.closing_error() from None
    finally:
        gateway.gate.leave(task)


async def _answer(
    gateway: Gateway, api: Api, request: web.Request, scope: int, headers: dict[str, str]
) -> web.StreamResponse:
    body = parse_body(api, await read_body(request, gateway.max_body_bytes))
    match = request.match_info
    path = PathClaims(match.get("job"), match.get("workflow")) if match else _NO_CLAIMS
    exchange = open_exchange(gateway, request, path, body, scope)
    headers["X-Maestro-Job"] = exchange.job
    if body.stream:
        return await StreamRelay(exchange, request, headers).run()
    return await relay_whole(exchange, request, headers)
