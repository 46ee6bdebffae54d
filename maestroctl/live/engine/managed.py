"""What every engine that we start has in common: process, memory, stop; see also `readiness`.

A start that fails or is cancelled leaves no process: it is stopped before the error goes up.
One object is one start; a restart is a new object with the next generation.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.domain.ids import EngineId
from maestroctl.domain.units import format_bytes, format_seconds
from maestroctl.errors import (
    CapabilityMissing,
    EngineError,
    EngineExited,
    ReadyTimeout,
)
from maestroctl.live import gpu
from maestroctl.live.engine.base import EngineAddress, EngineOrder, EngineState
from maestroctl.live.engine.capabilities import Capabilities
from maestroctl.live.engine.control import ControlClient
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.launch import LaunchSpec
from maestroctl.live.engine.process import EngineExit, EngineProcess
from maestroctl.live.engine.readiness import Readiness

_MEMORY_POLL_S = 0.1
# Freed pages never come back to the last byte (allocators keep some), and what a worker counts
# leaves out packed copies; half of what it counted tells "freed" from "not freed" with room.
_LEAST_FREED_SHARE = 0.5
_QUICK_PROBE_S = 60.0


class ManagedEngine(ABC):
    """Base of the engines whose process is ours."""

    def __init__(self, order: EngineOrder, capabilities: Capabilities) -> None:
        self._order = order
        self._capabilities = capabilities
        self._process: EngineProcess | None = None
        self._control: ControlClient | None = None
        self._address: EngineAddress | None = None
        self._kv_pool_bytes = 0  # KV held now, as far as this side knows; 0 while asleep
        self._kv_start_bytes = 0  # KV it was started with
        self._exited: asyncio.Future[EngineExit] = asyncio.get_running_loop().create_future()
        self._closing: asyncio.Future[None] | None = None  # keeps the last close alive

    # -- what each kind says ------------------------------------------------------------------

    @abstractmethod
    def _make_launch(self, kv_bytes: int) -> LaunchSpec:
        """How its process is started."""

    @abstractmethod
    def _make_address(self, identity: EngineIdentity) -> EngineAddress:
        """Where it is found once started."""

    @property
    @abstractmethod
    def _health_path(self) -> str:
        """Path that answers below 400 when it is up."""

    # -- reading ------------------------------------------------------------------------------

    @property
    def engine_id(self) -> EngineId:
        """Its name on the node."""
        return self._order.engine_id

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return self._capabilities

    @property
    def address(self) -> EngineAddress:
        """Where the relay connects."""
        if self._address is None:
            raise EngineError(f"engine '{self.engine_id}' has not been started")
        return self._address

    @property
    def exited(self) -> asyncio.Future[EngineExit]:
        """Resolves when its last process is gone."""
        return self._exited

    @property
    def is_managed(self) -> bool:
        """Ours to start and stop."""
        return True

    @property
    def process(self) -> EngineProcess:
        """Its process.

        Raises:
            EngineError: it has none yet.
        """
        if self._process is None:
            raise EngineError(f"engine '{self.engine_id}' has not been started")
        return self._process

    @property
    def control(self) -> ControlClient:
        """HTTP to it.

        Raises:
            EngineError: it has not been started.
        """
        if self._control is None:
            raise EngineError(f"engine '{self.engine_id}' has not been started")
        return self._control

    async def read_memory(self) -> EngineReadings:
        """Measure what its processes hold."""
        process = self.process
        pss_bytes = await process.read_pss_bytes()
        devices = [device for device in self._order.devices if device.startswith("cuda:")]
        if not devices:
            return EngineReadings(pss_bytes, 0, self._kv_pool_bytes)
        pids = [member.pid for member in await asyncio.to_thread(process.find_members)]
        held = await asyncio.to_thread(gpu.read_process_bytes, pids)
        # Figures of a model are per device after the tensor-parallel split: the fullest counts.
        device_bytes = max((held.get(device, 0) for device in devices), default=0)
        return EngineReadings(device_bytes, pss_bytes, self._kv_pool_bytes)

    async def read_state(self) -> EngineState:
        """What it says; a server without such requests says nothing."""
        return EngineState(kv_pool_bytes=self._kv_pool_bytes)

    # -- life ---------------------------------------------------------------------------------

    async def start(self, kv_bytes: int) -> EngineReadings:
        """Start it and wait until it has answered a token; see `Engine.start`."""
        if self._process is not None:
            raise EngineError(f"engine '{self.engine_id}' was started before")
        self._kv_start_bytes = kv_bytes
        self._bind(await EngineProcess.launch(self._make_launch(kv_bytes)))
        try:
            await self.wait_ready()
            await self._after_ready(kv_bytes)
            self._kv_pool_bytes = kv_bytes
            return await self.read_memory()
        except BaseException:
            # Cancellation too: a start that is withdrawn must not leave a process behind.
            await asyncio.shield(self.stop())
            raise

    async def adopt(self, identity: EngineIdentity) -> EngineReadings:
        """Take over an engine that an earlier daemon started; it keeps running on failure.

        Raises:
            EngineError: it is gone, or does not answer.
        """
        self._kv_start_bytes = identity.kv_bytes
        self._bind(await EngineProcess.adopt(self._order.state_dir, identity))
        try:
            if not await self.control.is_reachable(self._health_path):
                raise EngineError(f"engine '{self.engine_id}' of an earlier daemon is not healthy")
            state = await self.read_state()
            self._kv_pool_bytes = 0 if state.is_sleeping else identity.kv_bytes
            return await self.read_memory()
        except BaseException:
            await self.detach()
            raise

    async def wait_ready(self) -> None:
        """Wait until it is healthy and has answered one token.

        Raises:
            EngineStartFailed: it ended, or refuses to generate.
            ReadyTimeout: `start_timeout` passed.
        """
        limit_s = self._order.engine.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await self._readiness.wait(limit_s)
        except TimeoutError:
            raise ReadyTimeout(
                f"engine '{self.engine_id}' was not ready after {format_seconds(limit_s)}"
                f"{self.process.quote_log()}",
                hint=f"raise `engine.{self._order.engine.name}.start_timeout`, or see the log: "
                f"{self.process.identity.log_path}",
            ) from None

    async def probe(self) -> None:
        """Have one token generated.

        Raises:
            EngineError: it does not answer, or refuses.
        """
        await self._readiness.probe(_QUICK_PROBE_S)

    async def stop(self, grace_s: float | None = None) -> EngineExit:
        """Stop every process of it; safe to call again."""
        if self._process is None:
            return EngineExit(None)
        grace_s = self._order.engine.stop_grace_s if grace_s is None else grace_s
        try:
            return await self._process.stop(grace_s)
        finally:
            if self._control is not None:
                await self._control.close()

    async def detach(self) -> None:
        """Let go of it without stopping it."""
        if self._process is not None:
            await self._process.detach()
        if self._control is not None:
            await self._control.close()

    # -- what only some kinds can do ----------------------------------------------------------

    async def sleep(self, tier: ResidencyTier) -> EngineReadings:
        """Not possible unless a kind says otherwise."""
        raise CapabilityMissing(f"engine '{self.engine_id}' cannot sleep at tier {tier.value}")

    async def wake(self) -> EngineReadings:
        """Not possible unless a kind says otherwise."""
        raise CapabilityMissing(f"engine '{self.engine_id}' cannot sleep, and so cannot be woken")

    async def suspend(self) -> EngineReadings:
        """Not possible unless a kind says otherwise."""
        raise CapabilityMissing(f"engine '{self.engine_id}' cannot be suspended")

    async def resume(self) -> EngineReadings:
        """Not possible unless a kind says otherwise."""
        raise CapabilityMissing(f"engine '{self.engine_id}' cannot be suspended")

    async def abort(self, request_ids: Sequence[str]) -> None:  # noqa: B027
        """Nothing to do: closing the connection is all such a server understands."""

    async def set_kv_limit(self, kv_bytes: int) -> None:  # noqa: ARG002
        """Not possible unless a kind says otherwise."""
        raise CapabilityMissing(f"the KV limit of engine '{self.engine_id}' is fixed")

    # -- inside -------------------------------------------------------------------------------

    @property
    def _readiness(self) -> Readiness:
        return Readiness(
            self.engine_id, self.process, self.control, self.address, self._health_path
        )

    async def _after_ready(self, kv_bytes: int) -> None:  # noqa: B027
        """Last step of a start; a kind may check or set something here."""

    def _bind(self, process: EngineProcess) -> None:
        self._process = process
        self._address = self._make_address(process.identity)
        self._control = ControlClient(self._address, self.engine_id)
        process.exited.add_done_callback(self._pass_on_exit)

    def _pass_on_exit(self, ended: asyncio.Future[EngineExit]) -> None:
        if not self._exited.done() and not ended.cancelled():
            self._exited.set_result(ended.result())
        if self._control is not None:
            self._closing = asyncio.ensure_future(self._control.close())

    async def _read_held_bytes(self, readings: EngineReadings) -> int:
        """What falls when the engine frees memory.

        In a container with process ids of its own NVML knows the engine's processes by other
        ids. Then the whole device is read: nothing else changes on it during a transition.
        """
        if readings.device_bytes > 0 or self._order.devices[0].startswith("cpu"):
            return readings.device_bytes
        return await asyncio.to_thread(gpu.read_used_bytes, self._order.devices)

    async def _verify_freed(self, held_before: int, least_bytes: int, what: str) -> EngineReadings:
        """Wait until the device reading has fallen by enough.

        Args:
            held_before: bytes from before the change, by `_read_held_bytes`.
            least_bytes: what should have come back, as far as it is known.
            what: the change, for the error.

        Raises:
            EngineError: it has not within `memory_return_s`.
        """
        needed = int(least_bytes * _LEAST_FREED_SHARE)
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + self._order.memory_return_s
        while True:
            now = await self.read_memory()
            if self.process.has_ended:
                # The dead hold no memory either; that is no sleep.
                await asyncio.wait({self._exited})
                raise self._exit_error()
            held = await self._read_held_bytes(now)
            if held_before - held >= needed:
                return now
            if clock() >= deadline_s:
                raise EngineError(
                    f"engine '{self.engine_id}' was told to {what} and says it did, but its "
                    f"memory went from {format_bytes(held_before)} to "
                    f"{format_bytes(held)}; at least {format_bytes(needed)} should "
                    f"have come back within {format_seconds(self._order.memory_return_s)}"
                )
            await self._pause_or_exit(_MEMORY_POLL_S)

    async def _pause_or_exit(self, seconds: float) -> None:
        await asyncio.wait({self._exited}, timeout=seconds)
        if self._exited.done():
            raise self._exit_error()

    def _exit_error(self) -> EngineExited:
        ended = self._exited.result()
        return EngineExited(
            f"engine '{self.engine_id}' {ended.describe()}{self.process.quote_log()}"
        )
