"""The predictors behind the fleet: how they do, and forgetting what they learned here."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from maestroctl.errors import InvalidRequest
from maestroctl.gateway.endpoints import json_response, read_object
from maestroctl.gateway.exchange import Gateway

_SCOPE = ("workflow", "role", "model")


async def status(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/predictor/status``: artifact, process, what was learned, how good it was."""
    return json_response(gateway, request, gateway.control.predictor_status())


async def reset(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``POST /api/predictor/reset``: forget what belongs to all names given; none = everything.

    With ``refitted`` also the model that was fitted on this fleet's history.
    """
    document = await read_object(gateway, request) if request.can_read_body else {}
    refitted = document.pop("refitted", False)
    if not isinstance(refitted, bool):
        raise InvalidRequest("'refitted' must be true or false", param="refitted")
    scope = _read_scope(document)
    cells = await gateway.control.predictor_reset(**scope, refitted=refitted)
    return json_response(gateway, request, {"cells_reset": cells})


def _read_scope(document: dict[str, Any]) -> dict[str, str | None]:
    unknown = sorted(set(document) - set(_SCOPE))
    if unknown:
        raise InvalidRequest(
            f"unknown field {unknown[0]!r}; known are {', '.join(_SCOPE)}, refitted",
            param=unknown[0],
        )
    for name, value in document.items():
        if value is not None and not isinstance(value, str):
            raise InvalidRequest(f"{name!r} must be text", param=name)
    return {name: document.get(name) for name in _SCOPE}
