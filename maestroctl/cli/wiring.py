"""Puts a coordinator together: store, core, host, nodes, workflow runner, gateway.

The one place where all parts meet. `serve` and `demo` use the same `Coordinator`.

Start: own the state -> new epoch -> core and host -> nodes -> resume jobs -> gateway.
End:   gateway refuses -> stages drain (or are interrupted) -> nodes stop their engines -> state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from maestroctl.config.home import home_dir
from maestroctl.domain.fleet import EventLogSpec, FleetSpec
from maestroctl.domain.ids import NodeName
from maestroctl.domain.messages import PROTOCOL_VERSION, CoordinatorHello
from maestroctl.errors import FleetError, MaestroError, StateLocked, StoreError
from maestroctl.gateway.app import create_app
from maestroctl.gateway.server import GatewayServer
from maestroctl.live.coordinator.background_refit import BackgroundRefit
from maestroctl.live.coordinator.control import Control
from maestroctl.live.coordinator.host import CoordinatorHost
from maestroctl.live.coordinator.jobs import JobDesk
from maestroctl.live.coordinator.local_node import LocalNode
from maestroctl.live.coordinator.node_link import NodeLink
from maestroctl.live.coordinator.online_store import OnlineKeeper, load_online
from maestroctl.live.coordinator.prediction_desk import PredictionDesk
from maestroctl.live.coordinator.predictor_service import LearnedModels
from maestroctl.live.coordinator.unmeasured import tell_unmeasured
from maestroctl.live.event_log import open_event_log
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.events import ShutdownRequested
from maestroctl.store.database import Store
from maestroctl.store.journal import Journal
from maestroctl.store.lock import StateLock
from maestroctl.telemetry.exposition import Telemetry
from maestroctl.telemetry.log_header import LogHeader
from maestroctl.telemetry.recorder import EventLog

_NODE_STOP_LIMIT_S = 60.0
"""A node that has not stopped its engines after this is killed; its next start sweeps them."""


_PRUNE_EVERY_S = 300.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What the command line adds to the fleet file.

    Attributes:
        home: data folder; node state lives below it.
        debug: node daemons log more.
        notify: told in one line what a person should know (a store outage, a job resumed).
    """

    home: Path = field(default_factory=lambda: home_dir(os.environ))
    debug: bool = False
    notify: Callable[[str], None] = lambda _: None


class Coordinator:
    """One coordinator from `start` to `stop`.

    Raises (from `start`):
        StoreError: the state cannot be used; StateLocked when another coordinator has it.
        FleetError: the fleet asks for what this build cannot do.
        ConfigError: the address is in use.
    """

    def __init__(self, fleet: FleetSpec, options: CoordinatorOptions) -> None:
        self.fleet = fleet
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._options = options
        self._local: dict[NodeName, LocalNode] = {}
        self._links: dict[NodeName, asyncio.Task[None]] = {}
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Everything up; returns when requests are taken (models may still be preparing)."""
        async with contextlib.AsyncExitStack() as stack:
            store = stack.enter_context(Store.open(self.fleet.coordinator.state))
            store.interrupt_external(time.time())
            self.epoch = store.next_epoch()
            self.journal = Journal(store, on_error=self._store_trouble)
            stack.push_async_callback(self.journal.close)
            self.telemetry = Telemetry(self.journal)
            predictions = await self._predictions(stack, store)
            core = CoordinatorCore(self.fleet, self.epoch)
            event_log = self._open_event_log()
            stack.callback(event_log.close)
            self.host = CoordinatorHost(
                self.fleet,
                core,
                self.journal,
                self.telemetry,
                predictions,
                self._on_bug,
                event_log,
            )
            stack.callback(self.host.close)
            self.desk = JobDesk(self.host, store, self.journal, self._options.notify)
            stack.push_async_callback(self.desk.close)
            self.control = Control(
                self.host, self.desk, store, self.journal, self.learned, self.refit
            )
            app = create_app(self.host, self.control, self.telemetry.render)
            address = self.fleet.coordinator
            self.gateway = GatewayServer(app, address.host, address.port)
            await self.gateway.start()
            stack.push_async_callback(self.gateway.stop)
            pruning = asyncio.create_task(self._prune(store))
            stack.callback(pruning.cancel)
            telling = asyncio.create_task(tell_unmeasured(self.host, self._options.notify))
            stack.callback(telling.cancel)
            self._connect_nodes(stack)
            await self.desk.resume()
            self._stack = stack.pop_all()

    async def _predictions(self, stack: contextlib.AsyncExitStack, store: Store) -> PredictionDesk:
        self.learned = LearnedModels(self.fleet.predictor, self._options.home)
        stack.push_async_callback(self.learned.close)
        await self.learned.start()
        if self.learned.why_off:
            self._options.notify(f"No learned predictions: {self.learned.why_off}.")
        online = load_online(store, self._options.notify)
        online.keep_experts(self.learned.experts)
        desk = PredictionDesk(online, self.telemetry, self.learned.client)
        keeper = OnlineKeeper(desk, self.journal, store)
        stack.push_async_callback(keeper.close)
        keeper.start()
        self.refit = BackgroundRefit(
            self.fleet.predictor.refit_after_stages,
            self.fleet.coordinator.state,
            desk,
            self.learned,
            self.journal,
            self._options.notify,
        )
        stack.push_async_callback(self.refit.close)
        self.refit.start(store)
        return desk

    @property
    def url(self) -> str:
        """Where the gateway listens."""
        return self.gateway.url

    async def drain(self, limit_s: float) -> None:
        """Take nothing new; return when what runs has finished, or after `limit_s`."""
        self.desk.pause()
        self.host.post(ShutdownRequested(drain=True))
        await self.gateway.drain(limit_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.host.calls.wait_empty(), limit_s)

    async def stop(self) -> None:
        """Interrupt what still runs, stop every engine and daemon of ours, close the state."""
        self.desk.pause()
        self.host.post(ShutdownRequested(drain=False))
        await self.gateway.stop()
        await asyncio.gather(*(self._stop_node(name) for name in self.host.links))
        await self._stack.aclose()

    # --------------------------------------------------------------------------------------------

    def _open_event_log(self) -> EventLog:
        fleet = self.fleet
        header = LogHeader(
            "coordinator", fleet.policy, fleet=fleet, epoch=self.epoch, started_at=time.time()
        )
        return open_event_log(fleet.event_log, self._options.home, header)

    def _node_event_log(self, name: NodeName) -> EventLogSpec:
        """Nodes of this machine write beside the coordinator, others in their state folder."""
        spec = self.fleet.event_log
        if self.fleet.nodes[name].host is not None:
            return replace(spec, folder="")
        return replace(spec, folder=spec.folder or str(self._options.home.absolute() / "events"))

    def _connect_nodes(self, stack: contextlib.AsyncExitStack) -> None:
        for name, spec in self.fleet.nodes.items():
            if spec.host is not None:
                raise FleetError(
                    f"node {name!r} is on {spec.host!r}: nodes on other machines need"
                    " `maestroctl deploy`, which this version does not have yet",
                    hint="leave `host` out to run the node on this machine",
                )
            local = LocalNode(name, self._options.home / "nodes" / name, debug=self._options.debug)
            local.check_folder()
            stack.callback(_claim(name, self._options.home / "nodes" / name).release)
            link = NodeLink(name, local.sockets, self._hello(name), self.host, local.ensure)
            self.host.links[name] = link
            self._local[name] = local
            stack.callback(link.close)
            self._links[name] = asyncio.create_task(link.run())
            # Once more on the way out: a start that fails must not leave a daemon.
            stack.push_async_callback(self._stop_node, name)

    def _hello(self, name: NodeName) -> Callable[[], CoordinatorHello]:
        spec = self.fleet.nodes[name]
        models = [m for m in self.fleet.models.values() if not spec.models or m.name in spec.models]
        hello = CoordinatorHello(
            protocol=PROTOCOL_VERSION,
            epoch=self.epoch,
            node=spec,
            policy=self.fleet.policy,
            models=tuple(models),
            engines=tuple(self.fleet.engines.values()),
            event_log=self._node_event_log(name),
        )
        return lambda: hello

    async def _stop_node(self, name: NodeName) -> None:
        told = False
        with contextlib.suppress(TimeoutError):
            shut_down = self.host.links[name].shut_down(drain=False)
            told = await asyncio.wait_for(shut_down, _NODE_STOP_LIMIT_S)
        # The link ends before the daemon is waited for, or it would start another one.
        self._links[name].cancel()
        await asyncio.gather(self._links[name], return_exceptions=True)
        await self._local[name].wait_gone(_NODE_STOP_LIMIT_S, told=told)

    async def _prune(self, store: Store) -> None:
        """Forget the oldest finished jobs, now and then."""
        while True:
            await asyncio.sleep(_PRUNE_EVERY_S)
            with contextlib.suppress(StoreError):  # reported by the journal already
                await asyncio.to_thread(store.prune, self.fleet.coordinator.history_jobs)

    def _store_trouble(self, error: MaestroError) -> None:
        self._options.notify(f"the state database refuses: {error}")

    def _on_bug(self, exc: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(exc)


def _claim(node: NodeName, node_dir: Path) -> StateLock:
    """One coordinator per node: a second one would take its daemon and engines away.

    Raises:
        StateLocked: another coordinator, on a state of its own, has the node.
    """
    try:
        return StateLock(node_dir / "coordinator")
    except StateLocked as exc:
        owner = re.search(r"pid \w+", exc.message)
        raise StateLocked(
            f"node {node!r} in {node_dir} belongs to another coordinator"
            f" ({owner.group() if owner else 'pid unknown'})",
            hint="stop it first, or set MAESTROCTL_HOME to another folder for this one",
        ) from exc
