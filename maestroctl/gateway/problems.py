"""Errors as clients of these APIs expect them: one table from exception to status and body.

Covers error bodies, error events of a stream and foreign exceptions. Nothing a caller sees here
names a key, a prompt or a traceback.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from aiohttp import web

from maestroctl.errors import (
    ConfigError,
    EngineError,
    FleetError,
    MaestroError,
    RequestError,
    StoreError,
    Unavailable,
    UpstreamFailed,
)
from maestroctl.errors import InvalidRequest as _InvalidRequest
from maestroctl.gateway.openai_schema import Api

_RETRY_S = 1.0
"""``Retry-After`` of a 429 that does not say it."""
SERVER = "maestroctl"
"""What the gateway calls itself in the ``Server`` header."""


class NotFound(RequestError):
    """404: no such path, job or stage."""

    http_status, code, type = 404, "not_found", "invalid_request_error"


class MethodNotAllowed(RequestError):
    """405: the path exists, the method does not."""

    http_status, code, type = 405, "method_not_allowed", "invalid_request_error"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class Conflict(RequestError):
    """409: it cannot be done in the state things are in."""

    http_status, code, type = 409, "conflict", "invalid_request_error"


class Forbidden(RequestError):
    """403: a browser page of another origin."""

    http_status, code, type = 403, "forbidden", "invalid_request_error"


def as_request_error(exc: Exception) -> RequestError:
    """The error a caller is told about `exc`; anything unforeseen is a 500 without details."""
    match exc:
        case RequestError():
            return exc
        case ConfigError():
            return _InvalidRequest(exc.message, param=exc.key, hint=exc.hint)
        case StoreError() | FleetError():
            return Unavailable(str(exc), hint=exc.hint)
        case EngineError():
            return UpstreamFailed(str(exc), hint=exc.hint)
        case MaestroError():
            return RequestError(str(exc), hint=exc.hint)
        case _:
            return RequestError("the gateway failed on this request; its log has the details")


def error_fields(error: RequestError) -> dict[str, Any]:
    """The inner object: message, type, param, code."""
    message = error.message
    if error.hint:
        link = "" if message.endswith((".", "!", "?")) else "." if error.hint[0].isupper() else ";"
        message += f"{link} {error.hint}"
    return {"message": message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: RequestError, api: Api | None = None) -> bytes:
    """``{"error": {...}}``; the messages API also wants a ``type`` beside it."""
    document: dict[str, Any] = {"error": error_fields(error)}
    if api is Api.MESSAGES:
        document = {"type": "error", **document}
    return _encode(document)


def error_event(error: RequestError, api: Api | None = None) -> bytes:
    """The last event of a stream that did not end well."""
    if api in (Api.MESSAGES, Api.RESPONSES):
        document = {"type": "error", "error": error_fields(error)}
        return b"event: error\ndata: " + _encode(document) + b"\n\n"
    return b"data: " + error_body(error) + b"\n\n"


def error_response(
    error: RequestError, headers: dict[str, str] | None = None, api: Api | None = None
) -> web.Response:
    """The answer to a request that failed before its first byte."""
    all_headers = {"Content-Type": "application/json", "Server": SERVER, **(headers or {})}
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.http_status == 429:
        retry_after_s = _RETRY_S
    if retry_after_s is not None:
        all_headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    if isinstance(error, MethodNotAllowed):
        all_headers["Allow"] = error.allow
    if error.http_status == 401:
        all_headers["WWW-Authenticate"] = "Bearer"
    return web.Response(body=error_body(error, api), status=error.http_status, headers=all_headers)


def error_from_engine(status: int, body: bytes) -> RequestError:
    """An engine's 4xx as an exception, for a stream that has already begun with heartbeats."""
    fields: Any = None
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        pass
    if isinstance(fields, dict):
        fields = fields.get("error", fields)
    if not isinstance(fields, dict):
        fields = {
            "message": fields if isinstance(fields, str) else body[:300].decode("utf-8", "replace")
        }
    param = fields.get("param")
    error = _InvalidRequest(
        str(fields.get("message") or f"the engine answered {status}"),
        param=param if isinstance(param, str) else None,
        code=str(fields.get("code") or status),
    )
    error.type = str(fields.get("type") or error.type)
    return error


def _encode(document: dict[str, Any]) -> bytes:
    # Text taken from a request may hold lone surrogates, which are no UTF-8.
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        text = str(document["error"]["message"]).encode("utf-8", "replace").decode()
        return msgspec.json.encode(
            {**document, "error": {**document["error"], "message": text, "param": None}}
        )
