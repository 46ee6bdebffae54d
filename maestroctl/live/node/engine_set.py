"""The engines of one node: made, kept, watched, reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from maestroctl.domain.ids import DeviceName, EngineId, ModelName, StageId
from maestroctl.domain.llm import EngineSpec, ModelSpec
from maestroctl.errors import EngineError
from maestroctl.live.engine.base import Engine, EngineOrder
from maestroctl.live.engine.factory import make_engine, recover_engines
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.process import EngineExit
from maestroctl.live.http1.client import HttpPool
from maestroctl.scheduler.effects import StartEngine

log = logging.getLogger(__name__)

_RELEASE_LIMIT_S = 5.0
"""How long the KV of a stage whose caller left stays booked when its engine does not answer."""


@dataclass(slots=True)
class _Kept:
    engine: Engine
    pool: HttpPool | None = None
    stopping: bool = False
    activation: str = ""
    activation_ended_s: float = 0.0
    activation_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model this node may run, ready to be started.

    Attributes:
        folder: its weights; None for kinds that bring their own.
    """

    spec: ModelSpec
    engine: EngineSpec
    folder: Path | None


@dataclass(slots=True)
class EngineSet:
    """All engines of one daemon.

    Args:
        threads: CPU threads that the engines share; None = leave it to them.
    """

    state_dir: Path
    models: Mapping[ModelName, ServedModel]
    threads: int | None = None
    _kept: dict[EngineId, _Kept] = field(default_factory=dict)

    # --- life -----------------------------------------------------------------------------------

    async def create(self, effect: StartEngine) -> Engine:
        """Make the engine of a `StartEngine`, in place of one that has ended.

        Raises:
            EngineError: its environment is missing or broken.
            ConfigError: its version is not supported.
        """
        order = self._order(effect.engine_id, effect.model, effect.generation, effect.devices)
        engine = await make_engine(order)
        self._drop(effect.engine_id)
        self._kept[effect.engine_id] = _Kept(engine)
        return engine

    async def attach(self, engine_id: EngineId, model: ModelName) -> None:
        """Take up an engine that somebody else runs; whether it answers is seen at each request.

        Raises:
            ConfigError: its address or the file of its key is no good.
        """
        engine = await make_engine(self._order(engine_id, model, 1, ()))
        self._kept[engine_id] = _Kept(engine)

    async def recover(self) -> list[tuple[Engine, EngineOrder]]:
        """Take over the healthy engines of an earlier daemon; the others are stopped."""
        orders: dict[EngineId, EngineOrder] = {}

        def make_order(identity: EngineIdentity) -> EngineOrder | None:
            order = self._order_of(identity)
            if order is not None:
                orders[order.engine_id] = order
            return order

        recovery = await recover_engines(self.state_dir, make_order)
        for name, reason in recovery.ended:
            log.info("engine %s of an earlier daemon was stopped: %s", name, reason)
        for engine in recovery.adopted:
            self._kept[engine.engine_id] = _Kept(engine)
        return [(engine, orders[engine.engine_id]) for engine in recovery.adopted]

    async def stop(self, engine_id: EngineId) -> None:
        """Stop every process of the engine; returns when they are seen to be gone."""
        kept = self._kept.get(engine_id)
        if kept is not None:
            kept.stopping = True
            await kept.engine.stop()
            self._drop(engine_id)

    async def close(self) -> None:
        """Close connections and let go of the engines without stopping them."""
        for kept in self._kept.values():
            if kept.pool is not None:
                kept.pool.close()
            await kept.engine.detach()
        self._kept.clear()

    def _drop(self, engine_id: EngineId) -> None:
        kept = self._kept.pop(engine_id, None)
        if kept is not None and kept.pool is not None:
            kept.pool.close()

    # --- reach ----------------------------------------------------------------------------------

    def get(self, engine_id: EngineId) -> Engine:
        """The engine.

        Raises:
            EngineError: there is none of that name.
        """
        kept = self._kept.get(engine_id)
        if kept is None:
            raise EngineError(f"engine '{engine_id}' is not running")
        return kept.engine

    def all(self) -> list[Engine]:
        """Every engine that is kept."""
        return [kept.engine for kept in self._kept.values()]

    def is_alive(self, engine_id: EngineId) -> bool:
        """Whether its process is up (always, for those that are not ours)."""
        kept = self._kept.get(engine_id)
        return kept is not None and not kept.engine.exited.done()

    def is_stopping(self, engine_id: EngineId) -> bool:
        """Whether its end is our doing."""
        kept = self._kept.get(engine_id)
        return kept is None or kept.stopping

    def watch(self, engine_id: EngineId, on_exit: Callable[[str], None]) -> None:
        """Call back when its process ends, with how it ended."""

        def report(done: asyncio.Future[EngineExit]) -> None:
            if not done.cancelled():
                on_exit(str(done.result()))

        self.get(engine_id).exited.add_done_callback(report)

    def pool(self, engine_id: EngineId) -> HttpPool:
        """Connections to the engine."""
        kept = self._kept[engine_id]
        if kept.pool is None:
            address = kept.engine.address
            key = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
            kept.pool = HttpPool(address.base_url, address.socket_path, key)
        return kept.pool

    async def abort(self, engine_id: EngineId, stage_id: StageId) -> None:
        """Have the engine drop a request; gives up after a while, for it may be hung or gone."""
        if not self.is_alive(engine_id):
            return
        with contextlib.suppress(EngineError, OSError, TimeoutError):
            await asyncio.wait_for(self.get(engine_id).abort([stage_id]), _RELEASE_LIMIT_S)

    # --- activations, for the stages that waited for them ----------------------------------------

    def activated(self, engine_id: EngineId, kind: str, seconds: float, now_s: float) -> None:
        """Remember the last wake or start of the engine."""
        kept = self._kept.get(engine_id)
        if kept is not None:
            kept.activation, kept.activation_s, kept.activation_ended_s = kind, seconds, now_s

    def activation_since(self, engine_id: EngineId, since_s: float) -> tuple[str, float]:
        """What a stage that was offered at `since_s` waited for: kind and seconds."""
        kept = self._kept.get(engine_id)
        if kept is None or not kept.activation or kept.activation_ended_s < since_s:
            return ("", 0.0)
        return (kept.activation, kept.activation_s)

    # --------------------------------------------------------------------------------------------

    def _order(
        self,
        engine_id: EngineId,
        model: ModelName,
        generation: int,
        devices: tuple[DeviceName, ...],
    ) -> EngineOrder:
        served = self.models[model]
        return EngineOrder(
            engine_id=engine_id,
            generation=generation,
            model=served.spec,
            engine=served.engine,
            state_dir=self.state_dir,
            devices=devices,
            model_dir=served.folder,
            threads=self.threads,
        )

    def _order_of(self, identity: EngineIdentity) -> EngineOrder | None:
        model = ModelName(identity.model)
        if model not in self.models:
            return None
        return self._order(
            EngineId(identity.engine),
            model,
            identity.generation,
            tuple(DeviceName(name) for name in identity.devices),
        )
