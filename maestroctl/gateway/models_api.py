"""Models as clients and people see them: ``/v1/models``, ``/api/ps``, ``/api/models``.

Everything is read from the fleet file and the last snapshots; reading never wakes a model.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from maestroctl.domain.engine import EngineStatus
from maestroctl.domain.ids import ModelName
from maestroctl.domain.llm import ModelSpec
from maestroctl.domain.messages import ModelAction
from maestroctl.domain.snapshot import EngineSnapshot, NodeSnapshot
from maestroctl.errors import InvalidRequest
from maestroctl.gateway.endpoints import json_response
from maestroctl.gateway.exchange import Gateway, unknown_model
from maestroctl.gateway.problems import Conflict, NotFound

_READINESS = (
    EngineStatus.ACTIVE,
    EngineStatus.IDLE,
    EngineStatus.RESUMING,
    EngineStatus.WAKING,
    EngineStatus.SUSPENDING,
    EngineStatus.SUSPENDED,
    EngineStatus.DRAINING,
    EngineStatus.FALLING_ASLEEP,
    EngineStatus.SLEEPING,
    EngineStatus.STARTING,
    EngineStatus.STOPPING,
    EngineStatus.STOPPED,
    EngineStatus.FAILED,
)
"""Nearest to serving first: a model's state is that of its readiest engine."""


async def list_models(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /v1/models``: every configured model and group, whatever its state."""
    fleet = gateway.control.fleet
    nodes = gateway.control.nodes()
    data = [_model_object(gateway, name, spec, nodes) for name, spec in fleet.models.items()]
    data += [_group_object(gateway, name, group.models) for name, group in fleet.groups.items()]
    if "auto" not in fleet.models and "auto" not in fleet.groups:
        data.append(_group_object(gateway, "auto", tuple(fleet.models)))
    return json_response(gateway, request, {"object": "list", "data": data})


async def get_model(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /v1/models/{id}``: a model, alias or group."""
    name = request.match_info["id"]
    fleet = gateway.control.fleet
    candidates = fleet.resolve(name)
    if not candidates:
        raise unknown_model(gateway, name)
    spec = fleet.models.get(candidates[0])
    if len(candidates) == 1 and spec is not None and name not in fleet.groups:
        document = _model_object(gateway, name, spec, gateway.control.nodes())
    else:
        document = _group_object(gateway, name, candidates)
    return json_response(gateway, request, document)


def _model_object(
    gateway: Gateway, name: str, spec: ModelSpec, nodes: tuple[NodeSnapshot, ...]
) -> dict[str, Any]:
    engines = [e for node in nodes for e in node.engines if e.model == spec.name]
    length = spec.max_model_len or _length_from_profiles(spec.name, nodes)
    return {
        "id": name,
        "object": "model",
        "created": gateway.started_unix_s,
        "owned_by": "maestroctl",
        "max_model_len": length,
        "maestro": {
            "kind": "model",
            "model": spec.name,
            "state": _state_of(engines),
            "aliases": spec.aliases,
            "pinned": spec.pin or any(engine.pinned for engine in engines),
            "ready_in_s": min((engine.ready_in_s for engine in engines), default=None),
        },
    }


def _group_object(gateway: Gateway, name: str, models: tuple[ModelName, ...]) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": gateway.started_unix_s,
        "owned_by": "maestroctl",
        "maestro": {"kind": "group", "models": models},
    }


def _state_of(engines: list[EngineSnapshot]) -> EngineStatus:
    statuses = {engine.status for engine in engines}
    return next((status for status in _READINESS if status in statuses), EngineStatus.STOPPED)


def _length_from_profiles(model: ModelName, nodes: tuple[NodeSnapshot, ...]) -> int | None:
    lengths = [p.max_model_len for node in nodes for p in node.profiles if p.model == model]
    return max(lengths, default=None)


# --- ps -----------------------------------------------------------------------------------------


async def ps(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/ps``: models × nodes, stopped ones included, and the nodes' memory."""
    fleet, now_s = gateway.control.fleet, gateway.control.now_s()
    kept = gateway.control.kept_slots()
    snapshots = {snapshot.node: snapshot for snapshot in gateway.control.nodes()}
    rows: list[dict[str, Any]] = []
    nodes: list[dict[str, Any]] = []
    for name, spec in fleet.nodes.items():
        snapshot = snapshots.get(name)
        nodes.append({"node": name, "cluster": spec.cluster, **_node_fields(snapshot, now_s)})
        for model in spec.models or tuple(fleet.models):
            kept_slots = kept.get((model, name), 0)
            rows += [
                {**row, "kept_slots": kept_slots} for row in _rows(model, name, snapshot, now_s)
            ]
    return json_response(gateway, request, {"models": rows, "nodes": nodes})


def _rows(
    model: ModelName, node: str, snapshot: NodeSnapshot | None, now_s: float
) -> list[dict[str, Any]]:
    never = dict(snapshot.never_fits).get(model) if snapshot else None
    engines = [e for e in snapshot.engines if e.model == model] if snapshot else []
    rows = [{"model": model, "node": node, **_engine_fields(e, now_s)} for e in engines]
    if rows:
        for row in rows:
            row["failure"] = row["failure"] or never
        return rows
    return [{"model": model, "node": node, **_STOPPED_FIELDS, "failure": never}]


_STOPPED_FIELDS: dict[str, Any] = {
    "engine": None,
    "status": EngineStatus.STOPPED,
    "tier": "disk",
    "slots": 0,
    "num_running": 0,
    "num_waiting": 0,
    "ready_in_s": None,
    "weights_bytes": 0,
    "context_bytes": 0,
    "kv_limit_bytes": 0,
    "kv_booked_bytes": 0,
    "idle_s": None,
    "pinned": False,
    "failure": None,
}


def _engine_fields(engine: EngineSnapshot, now_s: float) -> dict[str, Any]:
    idle_s = None if engine.idle_since_s is None else max(0.0, now_s - engine.idle_since_s)
    return {
        "engine": engine.engine_id,
        "status": engine.status,
        "tier": engine.tier,
        "slots": engine.slots,
        "num_running": engine.num_running,
        "num_waiting": engine.num_waiting,
        "ready_in_s": engine.ready_in_s,
        "weights_bytes": engine.weights_bytes,
        "context_bytes": engine.context_bytes,
        "kv_limit_bytes": engine.kv_limit_bytes,
        "kv_booked_bytes": engine.kv_booked_bytes,
        "idle_s": idle_s,
        "pinned": engine.pinned,
        "failure": engine.failure,
    }


def _node_fields(snapshot: NodeSnapshot | None, now_s: float) -> dict[str, Any]:
    if snapshot is None:
        return {"connected": False, "draining": False, "age_s": None, "rtt_s": None, "devices": []}
    return {
        "connected": True,
        "rtt_s": snapshot.rtt_s,
        "draining": snapshot.draining,
        "age_s": max(0.0, now_s - snapshot.as_of_s),
        "devices": snapshot.devices,
    }


# --- actions ------------------------------------------------------------------------------------


async def model_action(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``POST /api/models/{name}/{action}``: wake, sleep, evict, pin or unpin by hand."""
    name, verb = request.match_info["name"], request.match_info["action"]
    if verb not in set(ModelAction):
        known = ", ".join(ModelAction)
        raise NotFound(f"{verb[:100]!r} is nothing a model can be told; one of {known}")
    fleet = gateway.control.fleet
    candidates = fleet.resolve(name)
    if not candidates:
        raise unknown_model(gateway, name)
    if len(candidates) > 1 or name in fleet.groups:
        raise InvalidRequest(
            f"{name!r} is a group; name one of its models: {', '.join(candidates)}", param="name"
        )
    answer = await gateway.control.model_action(candidates[0], ModelAction(verb))
    if answer.error is not None:
        raise Conflict(f"{verb} {candidates[0]}: {answer.error}")
    document = {"model": candidates[0], "action": verb, "done": not answer.note}
    return json_response(gateway, request, {**document, "note": answer.note})
