"""The coordinator's end of one node: its control connection and the way its stages go.

Keeps the connection up (re-connecting with back-off for as long as the link is open), measures the
round trip, and turns what the node says into calls on the listener. How the two sockets came to be
on this machine (a local daemon, a forward over SSH) is not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from maestroctl.domain.ids import ModelName, NodeName
from maestroctl.domain.messages import (
    PROTOCOL_VERSION,
    ActionAnswer,
    CoordinatorHello,
    DecisionsMade,
    ModelAction,
    ModelActionAnswered,
    NodeHello,
    NodeMessage,
    NodeStopped,
    Ping,
    Pong,
    RequestModelAction,
    Shutdown,
    SnapshotPublished,
)
from maestroctl.domain.records import DecisionRecord
from maestroctl.domain.snapshot import NodeSnapshot
from maestroctl.errors import NodeUnreachable, ProtocolMismatch
from maestroctl.live.http1.client import HttpPool
from maestroctl.live.timers import core_now_s
from maestroctl.live.transport.wire import ControlConnection, coordinator_side, open_control

PING_EVERY_S = 2.0
LOST_AFTER_S = 15.0
"""Silence after which a node counts as lost: several pings on a machine that is very busy."""
_BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class NodeSockets:
    """Where a node daemon listens."""

    stages: Path
    control: Path


class LinkListener(Protocol):
    """Who hears of the node."""

    def node_snapshot(self, snapshot: NodeSnapshot, rtt_s: float) -> None:
        """The node looks like this."""
        ...

    def node_lost(self, node: NodeName, reason: str) -> None:
        """The connection is gone."""
        ...

    def node_decided(self, node: NodeName, records: tuple[DecisionRecord, ...]) -> None:
        """Decisions that the node took."""
        ...


class NodeLink:
    """One node, from `run` until `close`.

    Args:
        hello: what the node is told first, made anew for each connection.
        ensure: called before each attempt to connect; starts the daemon where that is our part.
    """

    def __init__(
        self,
        node: NodeName,
        sockets: NodeSockets,
        hello: Callable[[], CoordinatorHello],
        listener: LinkListener,
        ensure: Callable[[], Awaitable[None]],
    ) -> None:
        self.node = node
        self.problem: str | None = "not connected yet"
        self.pool = HttpPool(socket_path=str(sockets.stages))
        self._sockets = sockets
        self._hello = hello
        self._listener = listener
        self._ensure = ensure
        self._control: ControlConnection[NodeMessage] | None = None
        self._rtt_s = 0.0
        self._pings: dict[int, float] = {}
        self._actions: dict[int, asyncio.Future[ActionAnswer]] = {}
        self._next_number = 1
        self._stopped = asyncio.Event()
        self._over = asyncio.Event()
        """The connection has ended; a new one clears it."""

    async def run(self) -> None:
        """Keep connected until cancelled, or until the node says that it has stopped."""
        failures = 0
        while not self._stopped.is_set():
            try:
                await self._ensure()
                await self._talk()
                failures = 0
            except (OSError, ProtocolMismatch, NodeUnreachable) as exc:
                failures += 1
                self.problem = str(exc) or type(exc).__name__
            await asyncio.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])

    async def _talk(self) -> None:
        """One connection, from hello to its end."""
        control = coordinator_side(*await open_control(str(self._sockets.control)))
        try:
            control.send(self._hello())
            await self._greet(control)
            self._control = control
            self._over.clear()
            self.problem = None
            pinger = asyncio.create_task(self._ping(control))
            try:
                await self._listen(control)
            finally:
                pinger.cancel()
        except TimeoutError:
            self.problem = f"the node daemon said nothing for {LOST_AFTER_S:.0f} s"
        finally:
            if self._control is control:
                self._control = None
                self._over.set()
                self._lose(self.problem or "the connection to the node daemon was closed")
            await control.close()

    async def _greet(self, control: ControlConnection[NodeMessage]) -> None:
        answer = await control.receive()
        if not isinstance(answer, NodeHello):
            raise NodeUnreachable(f"node {self.node!r} closed the connection at once")
        if answer.error is not None or answer.protocol != PROTOCOL_VERSION:
            raise ProtocolMismatch(
                f"node {self.node!r}: {answer.error or f'speaks protocol {answer.protocol}'}"
            )

    async def _listen(self, control: ControlConnection[NodeMessage]) -> None:
        while True:
            message = await asyncio.wait_for(control.receive(), LOST_AFTER_S)
            match message:
                case SnapshotPublished():
                    self._listener.node_snapshot(self._on_our_clock(message), self._rtt_s)
                case DecisionsMade():
                    self._listener.node_decided(self.node, message.records)
                case ModelActionAnswered():
                    self._answer(message.request_id, ActionAnswer(message.error, message.note))
                case Pong():
                    self._measure(message.number)
                case NodeStopped():
                    self._stopped.set()
                    return
                case _:
                    return

    def _on_our_clock(self, message: SnapshotPublished) -> NodeSnapshot:
        """The snapshot with its times moved from the node's clock to ours."""
        snapshot = message.snapshot
        now_s = core_now_s() - self._rtt_s / 2
        shift_s = now_s - snapshot.as_of_s
        engines = tuple(
            engine
            if engine.idle_since_s is None
            else replace(engine, idle_since_s=engine.idle_since_s + shift_s)
            for engine in snapshot.engines
        )
        return replace(snapshot, as_of_s=now_s, engines=engines, rtt_s=self._rtt_s or None)

    async def _ping(self, control: ControlConnection[NodeMessage]) -> None:
        while True:
            number = self._number()
            self._pings = {number: core_now_s()}
            control.send(Ping(number))
            await asyncio.sleep(PING_EVERY_S)

    def _measure(self, number: int) -> None:
        sent_s = self._pings.pop(number, None)
        if sent_s is not None:
            sample_s = core_now_s() - sent_s
            self._rtt_s = sample_s if self._rtt_s == 0 else 0.8 * self._rtt_s + 0.2 * sample_s

    # --- what the coordinator asks --------------------------------------------------------------

    async def model_action(self, model: ModelName, action: ModelAction) -> ActionAnswer:
        """Have the node carry it out."""
        if self._control is None:
            return ActionAnswer(f"node {self.node} is not connected: {self.problem}")
        number = self._number()
        answer: asyncio.Future[ActionAnswer] = asyncio.get_running_loop().create_future()
        self._actions[number] = answer
        self._control.send(RequestModelAction(number, action, model))
        return await answer

    def send(self, message: Any) -> None:
        """Send advice; dropped when the node is not connected."""
        if self._control is not None:
            self._control.send(message)

    async def shut_down(self, *, drain: bool) -> bool:
        """Ask the daemon to stop its engines and exit; returns when it has said so.

        Returns:
            Whether it did; False when it is not connected, or the connection broke first.
        """
        if self._control is not None:
            self._control.send(Shutdown(drain))
            await self._over.wait()
        return self._stopped.is_set()

    def close(self) -> None:
        """Close the connections to the node."""
        self.pool.close()

    # --------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _answer(self, number: int, answer: ActionAnswer) -> None:
        waiting = self._actions.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _lose(self, reason: str) -> None:
        for number in list(self._actions):
            self._answer(number, ActionAnswer(f"node {self.node} went away: {reason}"))
        self._listener.node_lost(self.node, reason)
