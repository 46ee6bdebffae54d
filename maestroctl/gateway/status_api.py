"""How gateway and fleet are doing: health, readiness, metrics, status, decisions, events."""

from __future__ import annotations

from aiohttp import web

from maestroctl.errors import InvalidRequest
from maestroctl.gateway.endpoints import json_response, query_int, stream_events
from maestroctl.gateway.exchange import Gateway
from maestroctl.gateway.gate import Gate

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_DECISIONS = 10_000


async def health(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /health``: this process answers."""
    return json_response(gateway, request, {"status": "ok"})


async def ready(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /ready``: 200 when something can be served, else 503 and why not."""
    reason = "shutting down" if gateway.gate.is_draining else gateway.control.not_ready()
    if reason is None:
        return json_response(gateway, request, {"status": "ready"})
    return json_response(gateway, request, {"status": "not_ready", "reason": reason}, status=503)


async def metrics(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /metrics``: Prometheus text."""
    headers = gateway.response_headers(request)
    headers["Content-Type"] = _METRICS_TYPE
    body = gateway.metrics()
    if body and not body.endswith(b"\n"):
        body += b"\n"
    return web.Response(body=body + gate_metrics(gateway.gate), headers=headers)


def gate_metrics(gate: Gate) -> bytes:
    """Open requests and answers by API and status, as Prometheus text."""
    lines = [
        "# HELP maestroctl_gateway_held Inference requests open now.",
        "# TYPE maestroctl_gateway_held gauge",
        f"maestroctl_gateway_held {gate.held}",
        "# HELP maestroctl_gateway_answers_total Answers by API and status; 499 = caller left.",
        "# TYPE maestroctl_gateway_answers_total counter",
    ]
    lines += [
        f'maestroctl_gateway_answers_total{{api="{api}",status="{status}"}} {count}'
        for (api, status), count in sorted(gate.outcomes.items())
    ]
    return ("\n".join(lines) + "\n").encode()


async def running(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /running``: stages queued or in flight."""
    return json_response(gateway, request, {"running": gateway.control.running()})


async def status(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/status``."""
    gate = gateway.gate
    document = {
        **gateway.control.status(),
        "gateway": {"held": gate.held, "max_held": gate.max_held, "draining": gate.is_draining},
    }
    return json_response(gateway, request, document)


async def decisions(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/decisions?subject=&limit=``: records of a stage, job or engine, oldest first."""
    subject = request.query.get("subject", "")
    if not subject:
        raise InvalidRequest("'subject' is missing: a stage, job or engine", param="subject")
    limit = query_int(request, "limit", 1000, MAX_DECISIONS)
    records = await gateway.control.decisions(subject, limit=limit)
    return json_response(gateway, request, {"subject": subject, "decisions": records})


async def events(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/events``: live events of everything."""
    return await stream_events(gateway, request, gateway.control.events())
