"""Carries one stage from the coordinator's request to an engine, and the answer back.

Bytes pass untouched. The relay tells `NodeCore` when the first byte has come and when the stage
has left the engine, and makes every unfinished answer visible: a stage that the daemon ends says
so in a last comment, and the connection is closed without the end of the body.

Life of a stage here: offered -> (held until the core decides) -> refused | aborted | forwarded
-> left. A coordinator that closes its request cancels the handler, wherever it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import msgspec
from aiohttp import web

from maestroctl.domain.ids import EngineId, ModelName, StageId
from maestroctl.domain.messages import ABORT_COMMENT, StageHeaders, StageRefusal
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvalidRequest
from maestroctl.live.engine.base import EngineAddress
from maestroctl.live.timers import core_now_s
from maestroctl.scheduler.effects import AbortStage, ForwardStage, RefuseStage
from maestroctl.scheduler.events import (
    NodeEvent,
    StageLeft,
    StageOffered,
    StageSentFirstByte,
    StageWithdrawn,
)

Verdict = ForwardStage | RefuseStage | AbortStage

_FORWARDED_RESPONSE_HEADERS = ("Content-Type", "Retry-After")


class RelayHost(Protocol):
    """What a relay needs of the node host."""

    def post(self, event: NodeEvent) -> None:
        """Tell the core."""
        ...

    def address(self, engine_id: EngineId) -> EngineAddress:
        """Where the engine takes requests."""
        ...

    def session(self, engine_id: EngineId) -> aiohttp.ClientSession:
        """Connections to the engine."""
        ...

    def activation_since(self, engine_id: EngineId, since_s: float) -> tuple[str, float]:
        """What a stage offered at `since_s` waited for: ``wake`` or ``start``, and seconds."""
        ...

    async def release(self, engine_id: EngineId, stage_id: StageId) -> None:
        """Make sure that the engine works on the stage no more."""
        ...


@dataclass(slots=True)
class HeldStage:
    """A stage that is in the daemon. Owner: the relay's handler task.

    Attributes:
        verdict: what the core decided first.
        waiter: resolved when `verdict` comes after the offer.
        aborted: set when the core ended a forwarded stage.
        task: the handler, cancelled by an abort.
        forwarded: its request to the engine has begun; `StageLeft` will follow.
    """

    stage_id: StageId
    task: asyncio.Task[object]
    offered_s: float
    verdict: Verdict | None = None
    waiter: asyncio.Future[None] | None = None
    aborted: AbortStage | None = None
    forwarded: bool = False

    def decide(self, effect: Verdict) -> None:
        """Deliver an effect of the core."""
        if self.verdict is None:
            self.verdict = effect
            if self.waiter is not None and not self.waiter.done():
                self.waiter.set_result(None)
        elif isinstance(effect, AbortStage):
            self.aborted = effect
            self.task.cancel()

    async def wait(self) -> Verdict:
        """The core's decision; at once when it came with the offer."""
        if self.verdict is None:
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        assert self.verdict is not None
        return self.verdict


class StageRelay:
    """Handles the stages of one daemon."""

    def __init__(self, host: RelayHost) -> None:
        self._host = host
        self._held: dict[StageId, HeldStage] = {}

    def decide(self, effect: Verdict) -> None:
        """Deliver an effect that concerns a stage; one that has left needs nothing more."""
        held = self._held.get(effect.stage_id)
        if held is not None:
            held.decide(effect)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """One stage, from offer to the last byte."""
        body = await request.read()
        offer = parse_offer(request)
        task = asyncio.current_task()
        assert task is not None
        held = HeldStage(offer.stage_id, task, core_now_s())
        if offer.stage_id in self._held:
            raise InvalidRequest(f"stage {offer.stage_id} is here already")
        self._held[offer.stage_id] = held
        try:
            self._host.post(offer)
            return await self._carry(request, body, held)
        except asyncio.CancelledError:
            if not held.forwarded:
                left = isinstance(held.verdict, ForwardStage)
                self._host.post((StageLeft if left else StageWithdrawn)(offer.stage_id))
            raise
        finally:
            del self._held[offer.stage_id]

    async def _carry(
        self, request: web.BaseRequest, body: bytes, held: HeldStage
    ) -> web.StreamResponse:
        verdict = await held.wait()
        if isinstance(verdict, RefuseStage):
            return _refusal(verdict)
        if isinstance(verdict, AbortStage):
            return _aborted(verdict)
        return await self._forward(request, body, held, verdict)

    async def _forward(
        self, request: web.BaseRequest, body: bytes, held: HeldStage, to: ForwardStage
    ) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        held.forwarded = True
        try:
            async with self._open(request, body, to) as upstream:
                headers = self._response_headers(upstream, held, to)
                if upstream.content_length is not None:
                    answer = await upstream.read()
                    response = web.Response(body=answer, status=upstream.status, headers=headers)
                else:
                    response = web.StreamResponse(status=upstream.status, headers=headers)
                    await response.prepare(request)
                    await self._copy(upstream, response, held)
        except aiohttp.ClientError as exc:
            self._host.post(StageLeft(held.stage_id))
            return await _broken(request, response, Outcome.FAILED, f"the engine broke off: {exc}")
        except asyncio.CancelledError:
            self._leave_early(held, to)
            if held.aborted is None:
                raise
            held.task.uncancel()
            return await _broken(request, response, held.aborted.outcome, held.aborted.reason)
        self._host.post(StageLeft(held.stage_id))
        return response

    def _open(
        self, request: web.BaseRequest, body: bytes, to: ForwardStage
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        address = self._host.address(to.engine_id)
        headers = {
            "Content-Type": request.headers.get("Content-Type", "application/json"),
            "X-Request-Id": to.stage_id,
        }
        if address.api_key is not None:
            headers["Authorization"] = f"Bearer {address.api_key}"
        session = self._host.session(to.engine_id)
        return session.post(address.base_url + request.path_qs, data=body, headers=headers)

    def _response_headers(
        self, upstream: aiohttp.ClientResponse, held: HeldStage, to: ForwardStage
    ) -> dict[str, str]:
        """What is kept of the engine's headers, and what the stage waited for here."""
        headers = {
            name: upstream.headers[name]
            for name in _FORWARDED_RESPONSE_HEADERS
            if name in upstream.headers
        }
        activation, seconds = self._host.activation_since(to.engine_id, held.offered_s)
        if activation:
            headers[StageHeaders.ACTIVATION] = f"{activation} {seconds:.6f}"
        return headers

    async def _copy(
        self, upstream: aiohttp.ClientResponse, response: web.StreamResponse, held: HeldStage
    ) -> None:
        first = True
        async for chunk in upstream.content.iter_any():
            if first:
                first = False
                self._host.post(StageSentFirstByte(held.stage_id))
            await response.write(chunk)

    def _leave_early(self, held: HeldStage, to: ForwardStage) -> None:
        """The answer is not wanted any more; its KV counts until the engine has let it go."""
        release = asyncio.ensure_future(self._host.release(to.engine_id, held.stage_id))
        release.add_done_callback(lambda _: self._host.post(StageLeft(held.stage_id)))


def parse_offer(request: web.BaseRequest) -> StageOffered:
    """The offer in the headers of a stage request.

    Raises:
        InvalidRequest: a header is missing or malformed.
    """
    headers = request.headers
    try:
        epoch, _, seq = headers[StageHeaders.COMMAND].partition(".")
        prompt, _, booked = headers[StageHeaders.TOKENS].partition(".")
        return StageOffered(
            stage_id=StageId(headers[StageHeaders.STAGE]),
            attempt=int(headers[StageHeaders.ATTEMPT]),
            model=ModelName(msgspec.json.decode(headers[StageHeaders.MODEL], type=str)),
            epoch=int(epoch),
            seq=int(seq),
            prompt_tokens=int(prompt),
            booked_tokens=int(booked),
            service_class=ServiceClass(headers[StageHeaders.CLASS]),
            key=float(headers[StageHeaders.KEY]),
        )
    except (KeyError, ValueError, msgspec.MsgspecError) as exc:
        raise InvalidRequest(f"not a stage: {exc!r} in its headers") from exc


def _refusal(effect: RefuseStage) -> web.Response:
    refusal = StageRefusal(
        reason=effect.reason,
        shortfall_bytes={str(k): v for k, v in effect.shortfall_bytes.items()},
        permanent=effect.permanent,
        retry_in_s=effect.retry_in_s,
    )
    return web.Response(
        status=503,
        body=msgspec.json.encode(refusal),
        headers={StageHeaders.REFUSED: "1", "Content-Type": "application/json"},
    )


def _aborted(effect: AbortStage) -> web.Response:
    return web.Response(
        status=503, text=effect.reason, headers={StageHeaders.ABORTED: effect.outcome.value}
    )


async def _broken(
    request: web.BaseRequest, response: web.StreamResponse | None, outcome: Outcome, reason: str
) -> web.StreamResponse:
    """End a stage that has no good end: a 503 before the first byte, else a cut stream."""
    if response is None or not response.prepared:
        return web.Response(status=503, text=reason, headers={StageHeaders.ABORTED: outcome.value})
    line = " ".join(reason.split())
    with contextlib.suppress(ConnectionError):
        await response.write(ABORT_COMMENT + f"{outcome.value} {line}\n\n".encode())
    if request.transport is not None:
        request.transport.close()  # aiohttp writes no end of body to a closing transport
    return response
