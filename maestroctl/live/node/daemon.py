"""The node daemon: listens, speaks to one coordinator, ends when told or left alone.

Life:
  1. take the state folder (one daemon per folder), listen on the two sockets;
  2. wait for a coordinator's hello: it says what this node may run;
  3. prepare the models, take over engines that an earlier daemon left, make the core;
  4. serve until `Shutdown`, SIGTERM, a hello with another configuration (then exit and leave the
     engines to the next daemon), or until no coordinator has been there for the linger time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

from maestroctl import __version__
from maestroctl.domain.messages import (
    PROTOCOL_VERSION,
    CoordinatorHello,
    CoordinatorMessage,
    DecisionsMade,
    ModelActionAnswered,
    NodeHello,
    NodeStopped,
    Ping,
    Pong,
    Prewarm,
    Rebook,
    RequestModelAction,
    Shutdown,
    SnapshotPublished,
)
from maestroctl.domain.records import DecisionRecord
from maestroctl.errors import FleetError, InvalidRequest, InvariantViolation, ProtocolMismatch
from maestroctl.live.coordinator.local_node import node_sockets
from maestroctl.live.http1.server import HttpServer, Request
from maestroctl.live.node.host import NodeHost
from maestroctl.live.node.memory_watch import MemoryWatch
from maestroctl.live.node.preparation import build_host
from maestroctl.live.node.reaper import LOCK_NAME, Reaper
from maestroctl.live.timers import core_now_s
from maestroctl.live.transport.wire import MAX_LINE_BYTES, ControlConnection, node_side
from maestroctl.scheduler.events import (
    EpochAnnounced,
    ModelActionRequested,
    PrewarmAdvised,
    ShutdownRequested,
)

log = logging.getLogger(__name__)

_SNAPSHOT_EVERY_S = 1.0
_SEND_SOON_S = 0.005
"""Changes within this time go out as one snapshot."""
_HELLO_LIMIT_S = 60.0
"""A daemon that no coordinator ever speaks to ends after this."""
_STOP_LIMIT_S = 45.0
"""A process that survives SIGKILL (it hangs in the kernel) does not keep the daemon longer."""


class NodeDaemon:
    """One node's daemon; see the module text for its life.

    Args:
        state_dir: private to the user; sockets, engine identities and logs live there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._host: NodeHost | None = None
        self._hello: CoordinatorHello | None = None
        self._control: ControlConnection[CoordinatorMessage] | None = None
        self._records: list[DecisionRecord] = []
        self._send_handle: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._leave_engines = False
        self._bug: BaseException | None = None
        self._building: asyncio.Lock = asyncio.Lock()

    async def run(self) -> None:
        """Serve until the end.

        Raises:
            FleetError: another daemon owns the folder, or it cannot be used.
            InvariantViolation: a bug of ours; engines are left for the next daemon.
        """
        loop = asyncio.get_running_loop()
        with _owned(self._state_dir):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._told_to_stop)
            self._set_linger(_HELLO_LIMIT_S)
            self._reaper = Reaper(self._state_dir)
            async with self._listening():
                ticker = asyncio.create_task(self._tick())
                await self._ended.wait()
                ticker.cancel()
                await self._finish()
            await asyncio.to_thread(self._reaper.dismiss)
        if self._bug is not None:
            raise self._bug

    # --- listening ------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _listening(self):  # type: ignore[no-untyped-def]
        sockets = node_sockets(self._state_dir)
        stages = HttpServer(self._handle_stage)
        old_mask = os.umask(0o177)
        try:
            sockets.stages.unlink(missing_ok=True)
            sockets.control.unlink(missing_ok=True)
            await stages.listen(str(sockets.stages))
            control = await asyncio.start_unix_server(
                self._handle_control, str(sockets.control), limit=MAX_LINE_BYTES
            )
        finally:
            os.umask(old_mask)
        try:
            yield
        finally:
            control.close()
            await stages.close()
            sockets.stages.unlink(missing_ok=True)
            sockets.control.unlink(missing_ok=True)

    async def _handle_stage(self, request: Request) -> None:
        if self._host is None:
            request.answer(503, b"the node daemon has no coordinator yet", {})
            return
        try:
            await self._host.relay.handle(request)
        except InvalidRequest as exc:
            request.answer(400, exc.message.encode(), {})

    async def _handle_control(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        control = node_side(reader, writer)
        try:
            hello = await control.receive()
            if isinstance(hello, CoordinatorHello) and await self._greet(control, hello):
                await self._listen(control)
        except ProtocolMismatch as exc:
            log.warning("control connection refused: %s", exc)
        finally:
            if self._control is control:
                self._control = None
                if self._hello is not None:
                    self._set_linger(self._hello.node.linger_s)
            await control.close()

    async def _greet(
        self, control: ControlConnection[CoordinatorMessage], hello: CoordinatorHello
    ) -> bool:
        error = await self._accept(hello)
        name = hello.node.name
        control.send(NodeHello(PROTOCOL_VERSION, name, __version__, os.getpid(), error))
        if error is not None:
            return False
        assert self._host is not None
        self._control = control
        self._set_linger(None)
        self._reaper.set_linger(hello.node.linger_s)
        self._host.post(EpochAnnounced(hello.epoch))
        self._send()
        return True

    async def _accept(self, hello: CoordinatorHello) -> str | None:
        """Why the coordinator cannot have this daemon; None when it can."""
        if hello.protocol != PROTOCOL_VERSION:
            return f"speaks protocol {PROTOCOL_VERSION}, the coordinator {hello.protocol}"
        async with self._building:
            if self._ended.is_set():
                return "is stopping"
            if self._hello is not None and not _same_work(self._hello, hello):
                if self._control is not None:
                    return "serves another coordinator with another configuration"
                self._leave_engines = True
                self._ended.set()
                return "is restarting with the new configuration"
            if self._hello is not None and hello.epoch < self._hello.epoch:
                return f"has seen epoch {self._hello.epoch}, this coordinator is {hello.epoch}"
            if self._host is None:
                self._host = await build_host(hello, self._state_dir, self, self._on_bug)
            self._hello = hello
            return None

    async def _listen(self, control: ControlConnection[CoordinatorMessage]) -> None:
        host = self._host
        assert host is not None
        while True:
            message = await control.receive()
            match message:
                case Ping():
                    control.send(Pong(message.number))
                case RequestModelAction():
                    host.post(
                        ModelActionRequested(message.request_id, message.action, message.model)
                    )
                case Prewarm():
                    at_s = core_now_s() + message.in_s
                    host.post(
                        PrewarmAdvised(
                            message.model, message.probability, at_s, message.epoch, message.seq
                        )
                    )
                case Rebook():
                    host.relay.rebook(message)
                case Shutdown():
                    self._shut_down(drain=message.drain)
                case _:
                    return

    # --- NodeListener: what the core wants a coordinator to know ----------------------------------

    def snapshot_changed(self) -> None:
        """Send a snapshot soon."""
        if self._send_handle is None:
            loop = asyncio.get_running_loop()
            self._send_handle = loop.call_later(_SEND_SOON_S, self._send)

    def decided(self, record: DecisionRecord) -> None:
        """Keep a record for the next message."""
        if self._control is not None:
            self._records.append(record)
            self.snapshot_changed()

    def answered(self, answer: ModelActionAnswered) -> None:
        """An action asked for by hand is over."""
        if self._control is not None:
            self._control.send(answer)

    def _send(self) -> None:
        if self._send_handle is not None:
            self._send_handle.cancel()
            self._send_handle = None
        if self._control is None or self._host is None:
            return
        if self._records:
            self._control.send(DecisionsMade(tuple(self._records)))
            self._records.clear()
        snapshot = self._host.core.snapshot(core_now_s())
        self._control.send(SnapshotPublished(snapshot))

    async def _tick(self) -> None:
        """Regular snapshots and memory readings."""
        watch = MemoryWatch()
        while True:
            await asyncio.sleep(_SNAPSHOT_EVERY_S)
            if self._host is not None:
                await watch.look(self._host)
                self._send()

    # --- the end --------------------------------------------------------------------------------

    def _told_to_stop(self) -> None:
        if self._host is None:
            self._ended.set()
        else:
            self._shut_down(drain=False)

    def _shut_down(self, *, drain: bool) -> None:
        host = self._host
        if host is None:
            self._ended.set()
            return
        host.post(ShutdownRequested(drain))
        if host.emptied.is_set():
            self._ended.set()
        else:
            waiter = asyncio.ensure_future(host.emptied.wait())
            waiter.add_done_callback(lambda _: self._ended.set())
            if not drain:
                asyncio.get_running_loop().call_later(_STOP_LIMIT_S, self._ended.set)

    def _left_alone(self) -> None:
        log.info("no coordinator came back: stopping the engines")
        self._shut_down(drain=False)

    def _on_bug(self, exc: BaseException) -> None:
        if self._bug is None:
            story = exc.story if isinstance(exc, InvariantViolation) else ()
            log.critical("stopping on a bug: %s\n%s", exc, "\n".join(story), exc_info=exc)
            self._bug = exc
            self._leave_engines = True
            self._ended.set()

    async def _finish(self) -> None:
        if self._control is not None:
            self._send()
            if not self._leave_engines:
                self._control.send(NodeStopped())
            await self._control.drain()
            await self._control.close()
        if self._host is not None:
            await self._host.close()

    def _set_linger(self, seconds: float | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(seconds, self._left_alone)


@contextlib.contextmanager
def _owned(state_dir: Path):  # type: ignore[no-untyped-def]
    """Own the folder for as long as the process lives."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(state_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise FleetError(f"node daemon: cannot use {state_dir}: {exc.strerror}") from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(lock, 32, 0).decode(errors="replace").strip()
        os.close(lock)
        raise FleetError(f"node daemon: {state_dir} is in use by process {pid}") from None
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)


def _same_work(old: CoordinatorHello, new: CoordinatorHello) -> bool:
    """Whether the two say the same but for the epoch."""
    return replace(old, epoch=0) == replace(new, epoch=0)
