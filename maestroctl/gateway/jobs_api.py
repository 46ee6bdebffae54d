"""Submitted workflow runs: ``/api/jobs`` and what hangs below it."""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
from aiohttp import web

from maestroctl.domain.ids import JobId
from maestroctl.domain.outcome import JobStatus
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import parse_seconds
from maestroctl.domain.workflow import RepeatSpec, StepSpec, ToolSpec, WorkflowSpec
from maestroctl.errors import InvalidRequest
from maestroctl.gateway.endpoints import json_response, query_int, read_object, stream_events
from maestroctl.gateway.exchange import Gateway
from maestroctl.gateway.problems import Conflict, NotFound
from maestroctl.gateway.submit import JobRequest

_FIELDS = ("workflow", "input", "variables", "class", "deadline_s")
MAX_JOBS = 10_000


async def submit_job(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``POST /api/jobs``: durable once it is answered with 201."""
    if gateway.gate.is_draining:
        raise gateway.gate.closing_error()
    document = await read_object(gateway, request)
    job_id = await gateway.control.submit_job(parse_job(document))
    response = json_response(gateway, request, {"job_id": job_id, "status": "running"}, status=201)
    response.headers["X-Maestro-Job"] = job_id
    return response


def parse_job(document: dict[str, Any]) -> JobRequest:
    """Check the request for a workflow run.

    Raises:
        InvalidRequest: with the field at fault in `param`.
    """
    _refuse_unknown(document, _FIELDS, "")
    workflow = document.get("workflow")
    if not isinstance(workflow, dict):
        raise InvalidRequest("'workflow' must be an object", param="workflow")
    variables = document.get("variables")
    if variables is not None and not isinstance(variables, dict):
        raise InvalidRequest("'variables' must be an object", param="variables")
    return JobRequest(
        workflow=_parse_workflow(workflow),
        input=document.get("input"),
        variables=variables or {},
        service_class=_parse_class(document.get("class")),
        deadline_s=_parse_deadline(document.get("deadline_s")),
    )


def _parse_workflow(document: dict[str, Any]) -> WorkflowSpec:
    _refuse_unknown_fields(document, WorkflowSpec, "workflow")
    for name, kind in (("steps", StepSpec), ("tools", ToolSpec)):
        for key, part in _items(document.get(name)):
            _refuse_unknown_fields(part, kind, f"workflow.{name}.{key}")
            _refuse_unknown_fields(part.get("repeat"), RepeatSpec, f"workflow.{name}.{key}.repeat")
    try:
        spec = msgspec.convert(document, WorkflowSpec)
    except (msgspec.ValidationError, ValueError) as exc:
        problem, _, place = str(exc).partition(" - at `$")
        param = "workflow" + place.rstrip("`")
        raise InvalidRequest(f"'{param}': {problem.replace('`', '')}", param=param) from exc
    if not spec.steps:
        raise InvalidRequest("'workflow.steps' is empty", param="workflow.steps")
    for key, step in spec.steps.items():
        if key != step.name:
            param = f"workflow.steps.{key}.name"
            raise InvalidRequest(f"'{param}' is {step.name!r}, not its key", param=param)
    return spec


def _items(part: Any) -> list[tuple[str, dict[str, Any]]]:
    if not isinstance(part, dict):
        return []
    return [(key, value) for key, value in part.items() if isinstance(value, dict)]


def _refuse_unknown_fields(document: Any, spec: type, place: str) -> None:
    if isinstance(document, dict) and is_dataclass(spec):
        _refuse_unknown(document, tuple(f.name for f in fields(spec)), place)


def _refuse_unknown(document: dict[str, Any], known: tuple[str, ...], place: str) -> None:
    for key in document:
        if key not in known:
            param = f"{place}.{key}"[:200].lstrip(".")
            near = difflib.get_close_matches(key[:100], known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            raise InvalidRequest(f"'{param}' is not a known field.", param=param, hint=hint)


def _parse_class(value: Any) -> ServiceClass | None:
    if value is None:
        return None
    try:
        return ServiceClass(value)
    except ValueError:
        raise InvalidRequest(
            f"'class' must be one of {', '.join(ServiceClass)}", param="class"
        ) from None


def _parse_deadline(value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_seconds(value)
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(f"'deadline_s': {exc}", param="deadline_s") from None
    if seconds <= 0:
        raise InvalidRequest("'deadline_s' must be positive", param="deadline_s")
    return seconds


async def list_jobs(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/jobs?limit=&status=``: newest first."""
    status = request.query.get("status")
    if status is not None and status not in set(JobStatus):
        raise InvalidRequest(f"'status' must be one of {', '.join(JobStatus)}", param="status")
    limit = query_int(request, "limit", 100, MAX_JOBS)
    jobs = await gateway.control.jobs(limit=limit, status=status)
    return json_response(gateway, request, {"jobs": jobs})


async def get_job(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/jobs/{id}``: the job with its stages."""
    return json_response(gateway, request, await _job(gateway, request))


async def cancel_job(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``POST /api/jobs/{id}/cancel``."""
    job_id = JobId(request.match_info["id"])
    if not await gateway.control.cancel_job(job_id):
        job = await _job(gateway, request)
        raise Conflict(f"the job {job_id!r} is over: {job.get('status', 'finished')}")
    return json_response(gateway, request, {"job_id": job_id, "cancelled": True})


async def explain_job(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/jobs/{id}/explain?stage=``: every decision about a job and its stages."""
    job_id, stage = request.match_info["id"], request.query.get("stage")
    found = await gateway.control.explain(job_id, stage)
    near = f"; near it: {', '.join(found['near'])}" if found["near"] else ""
    if found["job"] is None:
        raise NotFound(f"there is no job {job_id[:128]!r}{near}", code="job_not_found")
    if stage is not None and not found["stages"]:
        message = f"the job {job_id!r} has no stage {stage[:128]!r}{near}"
        raise NotFound(message, code="stage_not_found")
    return json_response(gateway, request, found)


async def job_events(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    """``GET /api/jobs/{id}/events``: server-sent events until the job is over."""
    await _job(gateway, request)
    return await stream_events(
        gateway, request, gateway.control.events(JobId(request.match_info["id"]))
    )


async def _job(gateway: Gateway, request: web.Request) -> dict[str, Any]:
    job_id = JobId(request.match_info["id"])
    job = await gateway.control.job(job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id[:128]!r}", code="job_not_found")
    return job
