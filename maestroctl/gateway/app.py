"""The gateway's HTTP application: which path is served by what.

Covers the OpenAI-compatible API, the control API of the command line, and health. It does not
choose models, order or place anything: a `StageCall` goes to the `StageService`, questions go to
the `ControlService`. See `docs/api.md` for the API as users see it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from maestroctl.gateway import jobs_api, models_api, predictor_api, status_api
from maestroctl.gateway.auth import BrowserGuard, KeyRing, is_loopback
from maestroctl.gateway.endpoints import add_catch_all, add_inference_route, add_route
from maestroctl.gateway.exchange import Gateway
from maestroctl.gateway.gate import Gate
from maestroctl.gateway.inference import serve_inference
from maestroctl.gateway.openai_schema import Api
from maestroctl.gateway.submit import ControlService, StageService

GATEWAY = web.AppKey("gateway", Gateway)
_PREFIXES = ("", "/j/{job}", "/w/{workflow}/j/{job}")


def create_app(
    stages: StageService, control: ControlService, metrics: Callable[[], bytes]
) -> web.Application:
    """Put the application together from `control.fleet.coordinator`.

    Args:
        stages: runs stages.
        control: answers everything else.
        metrics: the rest of ``/metrics``, Prometheus text.

    Raises:
        ConfigError: the file with the API keys cannot be used.
    """
    spec = control.fleet.coordinator
    keys = KeyRing.load(spec.api_keys_file)
    gateway = Gateway(
        stages=stages,
        control=control,
        metrics=metrics,
        keys=keys,
        guard=BrowserGuard(check_host=is_loopback(spec.host) and not keys.required),
        gate=Gate(spec.max_held),
        started_unix_s=int(time.time()),
    )
    app = web.Application()
    app[GATEWAY] = gateway
    for prefix in _PREFIXES:
        for api in Api:
            add_inference_route(app, gateway, prefix + api.path, _inference(gateway, api))
        add_route(app, gateway, f"{prefix}/v1/models", {"GET": models_api.list_models})
        add_route(app, gateway, f"{prefix}/v1/models/{{id:.+}}", {"GET": models_api.get_model})
    _add_status_routes(app, gateway)
    _add_control_routes(app, gateway)
    add_catch_all(app, gateway)
    return app


def _inference(
    gateway: Gateway, api: Api
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    def handle(request: web.Request) -> Awaitable[web.StreamResponse]:
        return serve_inference(gateway, api, request)

    return handle


def _add_status_routes(app: web.Application, gateway: Gateway) -> None:
    add_route(app, gateway, "/health", {"GET": status_api.health}, is_open=True)
    add_route(app, gateway, "/ready", {"GET": status_api.ready}, is_open=True)
    add_route(app, gateway, "/metrics", {"GET": status_api.metrics})
    add_route(app, gateway, "/running", {"GET": status_api.running})


def _add_control_routes(app: web.Application, gateway: Gateway) -> None:
    routes = {
        "/api/status": {"GET": status_api.status},
        "/api/ps": {"GET": models_api.ps},
        "/api/jobs": {"GET": jobs_api.list_jobs, "POST": jobs_api.submit_job},
        "/api/jobs/{id}": {"GET": jobs_api.get_job},
        "/api/jobs/{id}/cancel": {"POST": jobs_api.cancel_job},
        "/api/jobs/{id}/explain": {"GET": jobs_api.explain_job},
        "/api/jobs/{id}/events": {"GET": jobs_api.job_events},
        "/api/events": {"GET": status_api.events},
        "/api/models/{name:.+}/{action}": {"POST": models_api.model_action},
        "/api/decisions": {"GET": status_api.decisions},
        "/api/predictor/status": {"GET": predictor_api.status},
        "/api/predictor/reset": {"POST": predictor_api.reset},
    }
    for path, methods in routes.items():
        add_route(app, gateway, path, methods)
