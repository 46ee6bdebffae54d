"""A stage's way through a simulated node: offer, verdict, first byte, outgrown booking, end.

The counterpart of `live.node.relay`; `SimNode` says what the core decides, the engine what the
stage comes to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maestroctl.domain.ids import StageId
from maestroctl.domain.outcome import Outcome, Usage
from maestroctl.scheduler.effects import AbortStage, RefuseStage
from maestroctl.scheduler.events import (
    StageEnded,
    StageLeft,
    StageOffered,
    StageOutgrew,
    StageProgressed,
    StageRebooked,
    StageRefused,
    StageSentFirstByte,
    StageStarted,
    StageWithdrawn,
)
from maestroctl.sim.engine import SimEngine
from maestroctl.sim.engine_model import EngineModel
from maestroctl.sim.loop import EventLoop
from maestroctl.sim.sequence import Sequence

if TYPE_CHECKING:
    from maestroctl.sim.node_host import SimNode

_BOOK_AHEAD_TOKENS = 128
"""An outgrown booking is raised by this much more, as the live relay does."""
_LEAVING_S = 0.5
"""An iteration and a bit: by then an aborted sequence has left its batch."""


class _Stage:
    """A stage in the node."""

    __slots__ = (
        "aborted",
        "attempt",
        "cached",
        "conversation",
        "engine",
        "offer",
        "offered_s",
        "output",
        "sent",
    )

    def __init__(self, offer: StageOffered, output: int, conversation: str, now_s: float) -> None:
        self.offer = offer
        self.attempt = offer.attempt
        self.output = output
        self.conversation = conversation
        self.cached = 0
        self.offered_s = now_s
        self.engine: SimEngine | None = None
        self.sent = False
        self.aborted: AbortStage | None = None


class SimRelay:
    """Owner of the stages in one node.

    Args:
        prefix_cache: engines keep what conversations had before.
    """

    def __init__(self, loop: EventLoop, node: SimNode, *, prefix_cache: bool) -> None:
        self._loop = loop
        self._node = node
        self._prefix_cache = prefix_cache
        self._stages: dict[StageId, _Stage] = {}

    # --- from the coordinator -------------------------------------------------------------------

    def offer(self, offer: StageOffered, output_tokens: int, conversation: str) -> None:
        """A stage came.

        Args:
            conversation: whose earlier prompts this one goes on from.
        """
        if offer.stage_id in self._stages:  # its aborted attempt is still leaving the engine
            self._node.tell(
                StageRefused(offer.stage_id, offer.attempt, "leaving", {}, False, _LEAVING_S)
            )
            return
        self._stages[offer.stage_id] = _Stage(offer, output_tokens, conversation, self._loop.now_s)
        self._node.post(offer)

    def rebook(self, event: StageRebooked) -> None:
        """A better prediction of a stage came."""
        stage = self._stages.get(event.stage_id)
        if stage is not None and stage.attempt == event.attempt:
            booked = event.booked_tokens
            if stage.engine is not None and stage.engine.model is not None:
                booked = stage.engine.model.rebook(stage.offer.stage_id, booked)
            stage.offer = replace(stage.offer, booked_tokens=booked)
            event = replace(event, booked_tokens=booked)
        self._node.post(event)

    def withdraw(self, stage_id: StageId) -> None:
        """The coordinator closed the stage's request."""
        stage = self._stages.get(stage_id)
        if stage is None:
            return
        if stage.engine is None:
            del self._stages[stage_id]
            self._node.post(StageWithdrawn(stage_id))
        elif stage.aborted is None:
            stage.aborted = AbortStage(stage_id, Outcome.CANCELLED, "withdrawn")
            self._abort_on(stage.engine, stage_id)

    # --- from the core --------------------------------------------------------------------------

    def forward(self, stage_id: StageId, engine: SimEngine) -> None:
        """The stage goes to the engine, which is up."""
        assert engine.model is not None
        stage = self._stages[stage_id]
        stage.engine = engine
        offer = stage.offer
        if self._prefix_cache:
            room = engine.model.kv_free_tokens
            stage.cached = engine.cache.take(stage.conversation, offer.prompt_tokens, room)
        engine.model.submit(
            Sequence(
                stage_id,
                offer.key,
                offer.prompt_tokens,
                stage.output,
                offer.booked_tokens,
                stage.cached,
            )
        )

    def refuse(self, effect: RefuseStage) -> None:
        """The node does not take the stage."""
        stage = self._stages.pop(effect.stage_id, None)
        if stage is None:
            return
        self._node.tell(
            StageRefused(
                effect.stage_id,
                stage.attempt,
                effect.reason,
                effect.shortfall_bytes,
                effect.permanent,
                effect.retry_in_s,
            )
        )

    def abort(self, effect: AbortStage) -> None:
        """The node ends the stage, wherever it is."""
        stage = self._stages.get(effect.stage_id)
        if stage is None or stage.aborted is not None:
            return
        stage.aborted = effect
        self._node.tell(
            StageEnded(
                effect.stage_id, stage.attempt, effect.outcome, stage.sent, None, effect.reason
            )
        )
        if stage.engine is None:
            del self._stages[effect.stage_id]
        else:
            self._abort_on(stage.engine, effect.stage_id)

    def _abort_on(self, engine: SimEngine, stage_id: StageId) -> None:
        if engine.model is None:
            self.gone(stage_id)
        else:
            engine.model.abort(stage_id)

    # --- from engines ---------------------------------------------------------------------------

    def first_token(self, name: str) -> None:
        """The stage's first byte goes out."""
        stage_id = StageId(name)
        stage = self._stages[stage_id]
        stage.sent = True
        self._node.post(StageSentFirstByte(stage_id))
        if stage.aborted is None:
            assert stage.engine is not None
            activation = stage.engine.activation_since(stage.offered_s)
            if activation is not None:
                self._node.tell_activation(stage_id, *activation)
            self._node.tell(StageStarted(stage_id, stage.attempt))

    def finish(self, name: str) -> None:
        """The stage is served."""
        stage_id = StageId(name)
        stage = self._stages.pop(stage_id)
        prompt = stage.offer.prompt_tokens
        if self._prefix_cache:
            engine = stage.engine
            assert engine is not None
            assert engine.model is not None
            room = engine.model.kv_free_tokens
            engine.cache.keep(stage.conversation, prompt + stage.output, room)
        self._node.post(StageLeft(stage_id))
        usage = Usage(prompt, stage.output, stage.cached)
        self._node.tell(StageEnded(stage_id, stage.attempt, Outcome.FINISHED, True, usage))

    def gone(self, name: str) -> None:
        """The stage has left its engine unserved."""
        stage_id = StageId(name)
        self._stages.pop(stage_id, None)
        self._node.post(StageLeft(stage_id))

    def outgrow(self, name: str, tokens: int) -> int:
        """The stage holds more than it booked; returns what it books from now on."""
        booked = tokens + _BOOK_AHEAD_TOKENS
        self._node.post(StageOutgrew(StageId(name), booked))
        return booked

    def drop_aborted(self, engine: SimEngine) -> None:
        """The engine's process is gone, and with it what was about to leave it."""
        for stage_id, stage in list(self._stages.items()):
            if stage.engine is engine and stage.aborted is not None:
                del self._stages[stage_id]

    def tell_progress(self, model: EngineModel) -> None:
        """What live hosts count while answers stream."""
        for name, left in model.tokens_left().items():
            stage = self._stages.get(StageId(name))
            if stage is not None and stage.sent and stage.aborted is None:
                tokens = stage.output - left
                self._node.tell(StageProgressed(StageId(name), stage.attempt, tokens))
