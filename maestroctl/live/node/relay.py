"""Carries one stage from the coordinator's request to an engine, and the answer back.

Bytes pass untouched. The relay tells `NodeCore` when the first byte has come and when the stage
has left the engine, and makes every unfinished answer visible: a stage that the daemon ends says
so in a last comment, and the connection is closed without the end of the body.

Life of a stage here: offered -> (held until the core decides) -> refused | aborted | forwarded
-> left. A coordinator that closes its request cancels the handler, wherever it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from maestroctl.domain.ids import EngineId, ModelName, StageId
from maestroctl.domain.messages import ABORT_COMMENT, Rebook, StageHeaders, StageRefusal
from maestroctl.domain.outcome import Outcome
from maestroctl.domain.stage import ServiceClass
from maestroctl.errors import InvalidRequest
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.http1.connection import Response
from maestroctl.live.http1.server import Request
from maestroctl.live.timers import core_now_s
from maestroctl.scheduler.effects import AbortStage, ForwardStage, RefuseStage
from maestroctl.scheduler.events import (
    NodeEvent,
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageRebooked,
    StageSentFirstByte,
    StageWithdrawn,
)

log = logging.getLogger(__name__)

Verdict = ForwardStage | RefuseStage | AbortStage

_BOOK_AHEAD_TOKENS = 128
"""A stage that outgrew its booking books this much more at a time."""
_MAX_EARLY = 64
_KEPT_HEADERS = ("content-type", "retry-after")


class RelayHost(Protocol):
    """What a relay needs of the node host."""

    def post(self, event: NodeEvent) -> None:
        """Tell the core."""
        ...

    def pool(self, engine_id: EngineId) -> HttpPool:
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
        booked_tokens: prompt and output; one event of a stream is at least one token.
        num_tokens: prompt, and output so far.
    """

    stage_id: StageId
    attempt: int
    task: asyncio.Task[object]
    offered_s: float
    prompt_tokens: int
    booked_tokens: int
    num_tokens: int
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
        self._early: OrderedDict[StageId, Rebook] = OrderedDict()
        """Corrections that overtook their stages, or came after they had left."""

    def decide(self, effect: Verdict) -> None:
        """Deliver an effect that concerns a stage; one that has left needs nothing more."""
        held = self._held.get(effect.stage_id)
        if held is not None:
            held.decide(effect)

    def rebook(self, message: Rebook) -> None:
        """A better prediction of a stage came; one that is not here yet is kept for it."""
        held = self._held.get(message.stage_id)
        if held is None:
            self._early[message.stage_id] = message
            if len(self._early) > _MAX_EARLY:
                self._early.popitem(last=False)
            return
        booked = message.booked_tokens
        if held.attempt == message.attempt:
            booked = held.booked_tokens = max(booked, held.num_tokens)
        self._host.post(
            StageRebooked(
                message.stage_id,
                message.attempt,
                message.epoch,
                message.seq,
                message.prompt_tokens,
                booked,
            )
        )

    async def handle(self, request: Request) -> None:
        """One stage, from offer to the last byte.

        Raises:
            InvalidRequest: it is not a stage, or it is here already.
        """
        offer = parse_offer(request.headers)
        if offer.stage_id in self._held:
            raise InvalidRequest(f"stage {offer.stage_id} is here already")
        task = asyncio.current_task()
        assert task is not None
        held = HeldStage(
            offer.stage_id,
            offer.attempt,
            task,
            core_now_s(),
            offer.prompt_tokens,
            offer.booked_tokens,
            offer.prompt_tokens,
        )
        self._held[offer.stage_id] = held
        try:
            self._host.post(offer)
            if (early := self._early.pop(offer.stage_id, None)) is not None:
                self.rebook(early)
            await self._carry(request, held)
        except asyncio.CancelledError:
            if not held.forwarded:
                left = isinstance(held.verdict, ForwardStage)
                self._host.post((StageLeft if left else StageWithdrawn)(offer.stage_id))
            raise
        finally:
            del self._held[offer.stage_id]

    async def _carry(self, request: Request, held: HeldStage) -> None:
        verdict = await held.wait()
        if isinstance(verdict, RefuseStage):
            _refuse(request, verdict)
        elif isinstance(verdict, AbortStage):
            _break_off(request, verdict.outcome, verdict.reason)
        else:
            await self._forward(request, held, verdict)

    async def _forward(self, request: Request, held: HeldStage, to: ForwardStage) -> None:
        held.forwarded = True
        try:
            upstream = await self._host.pool(to.engine_id).post(
                request.path, request.body, _engine_headers(request, to)
            )
            try:
                await self._copy(upstream, request, held, to)
            finally:
                upstream.close()
        except OSError as exc:
            self._host.post(StageLeft(held.stage_id))
            _break_off(request, Outcome.FAILED, f"engine {to.engine_id} broke off: {exc}")
        except Exception as exc:  # whatever it is, the booking may not stay for ever
            log.exception("stage %s on engine %s", held.stage_id, to.engine_id)
            self._host.post(StageLeft(held.stage_id))
            _break_off(request, Outcome.FAILED, f"the relay failed: {type(exc).__name__}")
        except asyncio.CancelledError:
            self._leave_early(held, to)
            if held.aborted is None:
                raise
            held.task.uncancel()
            _break_off(request, held.aborted.outcome, held.aborted.reason)

    async def _copy(
        self, upstream: Response, request: Request, held: HeldStage, to: ForwardStage
    ) -> None:
        headers = self._response_headers(upstream, held, to)
        if upstream.content_length is not None:
            body = await upstream.read()
            self._host.post(StageLeft(held.stage_id))
            request.answer(upstream.status, body, headers)
            return
        request.start(upstream.status, headers)
        num_events = 0
        while chunk := await upstream.readany():
            if not num_events:
                self._host.post(StageSentFirstByte(held.stage_id))
            num_events += max(1, chunk.count(b"\n\n"))
            held.num_tokens = held.prompt_tokens + num_events
            if held.num_tokens > held.booked_tokens:
                self._outgrow(held)
            await request.send(chunk)
        self._host.post(StageLeft(held.stage_id))
        request.end()

    def _response_headers(
        self, upstream: Response, held: HeldStage, to: ForwardStage
    ) -> dict[str, str]:
        """What is kept of the engine's headers, and what the stage waited for here."""
        headers = {
            name: upstream.headers[name] for name in _KEPT_HEADERS if name in upstream.headers
        }
        activation, seconds = self._host.activation_since(to.engine_id, held.offered_s)
        if activation:
            headers[StageHeaders.ACTIVATION] = f"{activation} {seconds:.6f}"
        return headers

    def _outgrow(self, held: HeldStage) -> None:
        """The stage holds more than it booked: book ahead in steps, so that few events do."""
        held.booked_tokens = held.num_tokens + _BOOK_AHEAD_TOKENS
        self._host.post(StageOutgrew(held.stage_id, held.booked_tokens))

    def _leave_early(self, held: HeldStage, to: ForwardStage) -> None:
        """The answer is not wanted any more; its KV counts until the engine has let it go."""
        release = asyncio.ensure_future(self._host.release(to.engine_id, held.stage_id))
        release.add_done_callback(lambda _: self._host.post(StageLeft(held.stage_id)))


def parse_offer(headers: Mapping[str, str]) -> StageOffered:
    """The offer in the headers of a stage request.

    Raises:
        InvalidRequest: a header is missing or malformed.
    """
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


def _engine_headers(request: Request, to: ForwardStage) -> dict[str, str]:
    return {
        "Content-Type": request.headers.get("content-type", "application/json"),
        "X-Request-Id": to.stage_id,
    }


def _refuse(request: Request, effect: RefuseStage) -> None:
    refusal = StageRefusal(
        reason=effect.reason,
        shortfall_bytes={str(device): size for device, size in effect.shortfall_bytes.items()},
        permanent=effect.permanent,
        retry_in_s=effect.retry_in_s,
    )
    headers = {StageHeaders.REFUSED: "1", "Content-Type": "application/json"}
    request.answer(503, msgspec.json.encode(refusal), headers)


def _break_off(request: Request, outcome: Outcome, reason: str) -> None:
    """End a stage that has no good end: a 503 before the first byte, else a cut stream."""
    line = " ".join(reason.split())
    if not request.started:
        request.answer(503, line.encode(), {StageHeaders.ABORTED: outcome.value})
        return
    comment = ABORT_COMMENT + f"{outcome.value} {line}\n\n".encode()
    request.send_now(comment)
    request.cut()
