"""What a request says it belongs to: job, workflow, stage, role, class, deadline.

Each of the six is taken from the first of these that has it:

1. the headers ``X-Maestro-Job``, ``-Workflow``, ``-Stage``, ``-Role``, ``-Class``, ``-Deadline``;
2. the body object ``maestro`` (``extra_body.maestro`` of the OpenAI client);
3. ``metadata`` with the keys ``maestro_job``, ``maestro_workflow``, …;
4. the path: ``/j/JOB/v1/…`` or ``/w/WORKFLOW/j/JOB/v1/…``;
5. for the job alone: the header ``X-Session-ID``, then the body field ``program_id``.

What is nearest to the single call goes first; a base URL or a session is set once for many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from multidict import CIMultiDictProxy, istr

from maestroctl.domain.ids import JobId
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import parse_seconds
from maestroctl.errors import InvalidRequest
from maestroctl.gateway.openai_schema import Body

MAX_NAME = 256
"""Characters of a job, workflow, stage or role."""

_FIELDS = ("job", "workflow", "stage", "role", "class", "deadline")
_HEADERS = tuple((name, istr(f"X-Maestro-{name.title()}")) for name in _FIELDS)
_SESSION = istr("X-Session-ID")


@dataclass(slots=True)
class Claims:
    """What was said, checked.

    Attributes:
        deadline_s: from now; None = none.
    """

    job: JobId | None = None
    workflow: str = ""
    stage: str = ""
    role: str = "assistant"
    service_class: ServiceClass = ServiceClass.INTERACTIVE
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class PathClaims:
    """What a base URL says."""

    job: str | None = None
    workflow: str | None = None


_Values = dict[str, tuple[Any, str]]
"""Value and the place it came from, by field."""


def _offer(values: _Values, name: str, value: Any, place: str) -> None:
    if value is not None and value != "":
        values.setdefault(name, (value, place))


def read_claims(headers: CIMultiDictProxy[str], path: PathClaims, body: Body) -> Claims:
    """Collect what the request says, and take our own field out of what is forwarded.

    Raises:
        InvalidRequest: a name, class or deadline that cannot be used.
    """
    values: _Values = {}
    for name, header in _HEADERS:
        value = headers.get(header)
        if value is not None:
            _offer(values, name, value, header)
    _offer_body(values, body)
    if path.job is not None:
        _offer(values, "workflow", path.workflow, "path")
        _offer(values, "job", path.job, "path")
    _offer(values, "job", headers.get(_SESSION), _SESSION)
    if "program_id" in body.fields:
        _offer(values, "job", _program_id(body.fields["program_id"]), "program_id")
    return _check(values) if values else Claims()


def _offer_body(values: _Values, body: Body) -> None:
    ours = body.known.get("maestro")
    if "maestro" in body.fields:
        del body.fields["maestro"]
    if "extra_body" in body.known:
        ours = _take_extra_body(body) or ours
    if ours:
        for name in _FIELDS:
            _offer(values, name, ours.get(name), f"maestro.{name}")
    metadata = body.known.get("metadata")
    if metadata:
        for name in _FIELDS:
            _offer(values, name, metadata.get(f"maestro_{name}"), f"metadata.maestro_{name}")


def _take_extra_body(body: Body) -> dict[str, Any] | None:
    """Clients without ``extra_body`` of their own may send it as it is written."""
    extra = dict(body.known["extra_body"])
    ours = extra.pop("maestro", None)
    if ours is None:
        return None
    if extra:
        body.fields["extra_body"] = extra
    else:
        del body.fields["extra_body"]
    if not isinstance(ours, dict):
        raise InvalidRequest("'extra_body.maestro' must be an object", param="extra_body.maestro")
    return ours


def _program_id(raw: Any) -> str | None:
    """A text or a number; whatever else other software means by this name is none of ours."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _check(values: Mapping[str, tuple[Any, str]]) -> Claims:
    claims = Claims()
    for name, (value, place) in values.items():
        match name:
            case "job":
                claims.job = JobId(_check_text(value, place))
            case "workflow":
                claims.workflow = _check_text(value, place)
            case "stage":
                claims.stage = _check_text(value, place)
            case "role":
                claims.role = _check_text(value, place)
            case "class":
                claims.service_class = _check_class(value, place)
            case _:
                claims.deadline_s = _check_deadline(value, place)
    return claims


def _check_text(value: Any, place: str) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    # Names end up in headers, logs and tables; printable excludes line breaks and broken Unicode.
    if not isinstance(text, str) or not text.isprintable() or len(text) > MAX_NAME:
        raise InvalidRequest(
            f"'{place}' must be a text of at most {MAX_NAME} printable characters", param=place
        )
    return text.strip() or "-"


def _check_class(value: Any, place: str) -> ServiceClass:
    try:
        return ServiceClass(value)
    except ValueError:
        known = ", ".join(ServiceClass)
        raise InvalidRequest(f"'{place}' must be one of {known}", param=place) from None


def _check_deadline(value: Any, place: str) -> float:
    try:
        seconds = parse_seconds(value)
    except (ValueError, OverflowError) as exc:
        raise InvalidRequest(f"'{place}': {exc}", param=place) from None
    if seconds <= 0:
        raise InvalidRequest(f"'{place}' must be in the future", param=place)
    return seconds
