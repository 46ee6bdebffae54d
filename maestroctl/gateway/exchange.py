"""The gateway's memory across requests, and one request on its way.

`Gateway` holds what all requests share; `open_exchange` turns a checked body into a `StageCall` and
an `Exchange`, which learns from the answer when it is complete.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web
from multidict import istr

from maestroctl.domain.ids import JobId, ModelName, StageId
from maestroctl.errors import UnknownModel
from maestroctl.gateway.auth import BrowserGuard, KeyRing
from maestroctl.gateway.conversation import Conversation, read_conversation
from maestroctl.gateway.descriptor import (
    JobPositions,
    TokenCounter,
    build_descriptor,
    measure_prompt,
    read_text,
)
from maestroctl.gateway.gate import Gate
from maestroctl.gateway.identity import Claims, PathClaims, read_claims
from maestroctl.gateway.joining import Chain, JobJoiner
from maestroctl.gateway.openai_schema import Api, Body
from maestroctl.gateway.problems import SERVER
from maestroctl.gateway.replies import Answer
from maestroctl.gateway.submit import ControlService, StageCall, StageReply, StageService

_X_REQUEST_ID = istr("X-Request-Id")
_MAX_REQUEST_ID = 128
_SHOWN_NAMES = 20


class _Ids:
    """Stage and job ids: a random part per process, then a counter."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(5)
        self._next = 0

    def new(self, kind: str) -> str:
        """``KIND-RANDOM-NUMBER``, unique over restarts."""
        self._next += 1
        return f"{kind}-{self._prefix}-{self._next}"


@dataclass(slots=True)
class Gateway:
    """What all requests share. Owner: the application; touched on its event loop alone."""

    stages: StageService
    control: ControlService
    metrics: Callable[[], bytes]
    keys: KeyRing
    guard: BrowserGuard
    gate: Gate
    started_unix_s: int
    joiner: JobJoiner = field(default_factory=JobJoiner)
    positions: JobPositions = field(default_factory=JobPositions)
    tokens: TokenCounter = field(default_factory=TokenCounter)
    ids: _Ids = field(default_factory=_Ids)

    @property
    def max_body_bytes(self) -> int:
        """Bodies over this get 413."""
        return self.control.fleet.coordinator.max_body_bytes

    @property
    def heartbeat_s(self) -> float:
        """Silence after which a waiting stream gets a comment."""
        return self.control.fleet.coordinator.heartbeat_s

    def response_headers(self, request: web.BaseRequest) -> dict[str, str]:
        """Headers of every answer: the request's id, or a new one."""
        given = request.headers.get(_X_REQUEST_ID)
        if given is None or not _is_echoable(given):
            given = self.ids.new("req")
        return {"Server": SERVER, "X-Request-Id": given}


def _is_echoable(text: str) -> bool:
    return 0 < len(text) <= _MAX_REQUEST_ID and text.isascii() and text.isprintable()


@dataclass(slots=True)
class Exchange:
    """One request that passed its checks.

    Attributes:
        prefix: digest of its conversation; None where the API has no conversations.
        num_bytes: prompt bytes that `usage` can be compared with; 0 = it cannot.
    """

    gateway: Gateway
    api: Api
    call: StageCall
    scope: int
    prefix: int | None
    num_bytes: int

    @property
    def job(self) -> JobId:
        """The job it belongs to."""
        return self.call.stage.job_id

    def note_answer(self, answer: Answer) -> None:
        """Remember what was answered, so that the next request finds its job."""
        if self.prefix is None:
            return
        joiner, now_s = self.gateway.joiner, self.gateway.control.now_s()
        for turns in answer.alternatives:
            joiner.note(self.scope, self.prefix, self.job, turns, now_s)
        if answer.ids:
            joiner.note_ids(self.scope, self.job, answer.ids, now_s)

    def learn_usage(self, reply: StageReply) -> None:
        """Correct the tokens-per-byte of the model by what its engine counted."""
        if reply.usage is not None:
            role = self.call.stage.role
            self.gateway.tokens.learn(reply.model, role, self.num_bytes, reply.usage.prompt_tokens)


def open_exchange(
    gateway: Gateway, request: web.BaseRequest, path: PathClaims, body: Body, scope: int
) -> Exchange:
    """Say what the request is: its candidates, its job, its descriptor.

    Raises:
        UnknownModel: no model, alias or group of that name.
        InvalidRequest: something it says of itself cannot be used.
    """
    fleet = gateway.control.fleet
    candidates = fleet.resolve(body.model)
    if not candidates:
        raise unknown_model(gateway, body.model)
    claims = read_claims(request.headers, path, body)
    conversation = read_conversation(body)
    now_s = gateway.control.now_s()
    has_turns = body.api in (Api.CHAT, Api.RESPONSES, Api.MESSAGES)
    chain = Chain(scope, conversation.turns) if has_turns else None
    job, position = _find_job(gateway, claims, chain, conversation, now_s)
    call, num_bytes = _stage_call(
        gateway, claims, job, position, candidates, body, conversation, now_s
    )
    prefix = chain.last if chain is not None else None
    return Exchange(gateway, body.api, call, scope, prefix, num_bytes)


def _find_job(
    gateway: Gateway,
    claims: Claims,
    chain: Chain | None,
    conversation: Conversation,
    now_s: float,
) -> tuple[JobId, tuple[int, int]]:
    """The named job, a continued one or a new one, and the position of the new call in it."""
    positions, role = gateway.positions, claims.role
    if claims.job is not None:
        return claims.job, positions.count(claims.job, role, now_s)
    job = gateway.joiner.find(chain, conversation, now_s) if chain is not None else None
    if job is not None:
        return job, positions.count(job, role, now_s, continued=True)
    return JobId(gateway.ids.new("job")), (0, 0)


def _stage_call(
    gateway: Gateway,
    claims: Claims,
    job: JobId,
    position: tuple[int, int],
    candidates: tuple[ModelName, ...],
    body: Body,
    conversation: Conversation,
    now_s: float,
) -> tuple[StageCall, int]:
    text = read_text(conversation)
    size = measure_prompt(body, conversation)
    stage = build_descriptor(
        stage_id=StageId(gateway.ids.new("stage")),
        job=job,
        claims=claims,
        candidates=candidates,
        body=body,
        text=text,
        size=size,
        ratio=gateway.tokens.tokens_per_byte(candidates[0], claims.role),
        position=position,
        now_s=now_s,
    )
    call = StageCall(
        stage=stage,
        text=text,
        path=body.api.path,
        body=body.fields,
        stream=body.stream,
        wants_usage=_wants_usage(body),
    )
    return call, 0 if size.num_exact else size.num_bytes


def _wants_usage(body: Body) -> bool:
    if not body.api.usage_on_request:
        return True
    options = body.known.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def unknown_model(gateway: Gateway, name: str) -> UnknownModel:
    """404 with the nearest name and the known ones."""
    fleet = gateway.control.fleet
    known = [*fleet.models, *fleet.groups]
    aliases = [alias for spec in fleet.models.values() for alias in spec.aliases]
    shown = name if len(name) <= 128 else name[:128] + "…"
    near = difflib.get_close_matches(shown, known + aliases, n=1)
    more = f", and {len(known) - _SHOWN_NAMES} more" if len(known) > _SHOWN_NAMES else ""
    return UnknownModel(
        f"the model {shown!r} does not exist."
        + (f" Did you mean {near[0]!r}?" if near else "")
        + f" Known: {', '.join(sorted(known)[:_SHOWN_NAMES])}{more}.",
        param="model",
    )
