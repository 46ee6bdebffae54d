"""The `Engine` protocol: what the node daemon may ask of one engine.

Every method that changes state or memory (`start`, `sleep`, `wake`, `suspend`, `resume`, `stop`)
returns only when the change has been *read back*; an HTTP 200 is never taken for it. On failure
they raise an `EngineError` that says what was found. The caller makes one such call at a time per
engine, and one at a time per device.

See also: `vllm`, `command`, `endpoint` (the implementations), `factory` (which makes them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.domain.llm import EngineSpec, ModelSpec
from maestroctl.live.engine.capabilities import Capabilities
from maestroctl.live.engine.process import EngineExit


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where an engine takes requests.

    Attributes:
        base_url: scheme and host without a trailing slash; the host is a placeholder when there
            is a socket.
        socket_path: Unix socket to connect to, or None for TCP.
        api_key: sent as a bearer token, or None.
        model: the name that the engine itself knows the model by.
    """

    base_url: str
    model: str
    socket_path: str | None = None
    api_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class EngineState:
    """What an engine says about itself.

    Attributes:
        is_sleeping: weights and KV are gone.
        is_paused: its scheduler is frozen.
        has_weights, has_kv: read from the worker; None when it cannot tell.
        weights_bytes, kv_bytes: held now, as the worker counts them; 0 when it cannot tell.
        num_running, num_waiting: requests inside the engine.
        kv_usage: share of its KV pool in use, 0 to 1.
        kv_pool_bytes: size of its KV pool; 0 when unknown.
    """

    is_sleeping: bool = False
    is_paused: bool = False
    has_weights: bool | None = None
    has_kv: bool | None = None
    weights_bytes: int = 0
    kv_bytes: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    kv_pool_bytes: int = 0


@dataclass(frozen=True)
class EngineOrder:
    """Everything needed to make one engine.

    Attributes:
        engine_id: unique on its node and stable over restarts of the process.
        generation: how often it has been started, this start included.
        model: the model to serve.
        engine: how its kind of engine is run.
        state_dir: the node's state folder, private to the user.
        devices: where it runs, in tensor-parallel order.
        model_dir: folder with the weights, or None for kinds that bring their own.
        threads: CPU threads for it; None = as many as there are cores.
        memory_return_s: how long freed memory may take to show in a reading.
    """

    engine_id: EngineId
    generation: int
    model: ModelSpec
    engine: EngineSpec
    state_dir: Path
    devices: tuple[DeviceName, ...] = (DeviceName("cpu"),)
    model_dir: Path | None = None
    threads: int | None = None
    memory_return_s: float = 15.0

    @property
    def served_name(self) -> str:
        """The name that the engine itself knows the model by."""
        return self.model.upstream_name or self.model.name


class Engine(Protocol):
    """One engine; see the module text for what its methods promise."""

    @property
    def engine_id(self) -> EngineId:
        """Its name on the node."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; a missing capability removes that rung."""
        ...

    @property
    def address(self) -> EngineAddress:
        """Where the relay connects; only valid after `start`."""
        ...

    @property
    def exited(self) -> asyncio.Future[EngineExit]:
        """Resolves when its last process is gone; never for engines that are not ours."""
        ...

    @property
    def is_managed(self) -> bool:
        """Whether it is ours to start and stop."""
        ...

    async def start(self, kv_bytes: int) -> EngineReadings:
        """Start it with this KV cache size and wait until it has answered a token.

        Raises:
            EngineStartFailed: it could not be launched, or ended; carries its last log lines.
            ReadyTimeout: `start_timeout` passed. Nothing is left running in either case.
        """
        ...

    async def wait_ready(self) -> None:
        """Wait until it is healthy and has answered a one-token probe."""
        ...

    async def sleep(self, tier: ResidencyTier) -> EngineReadings:
        """Give up weights and KV; it must have no request running.

        Raises:
            EngineError: requests are running, or memory did not come back.
            CapabilityMissing: it cannot.
        """
        ...

    async def wake(self) -> EngineReadings:
        """Bring weights and KV back; verified by state and by a token."""
        ...

    async def suspend(self) -> EngineReadings:
        """Freeze open requests, then give up weights and KV."""
        ...

    async def resume(self) -> EngineReadings:
        """Bring a suspended engine back and let its open requests go on."""
        ...

    async def stop(self, grace_s: float | None = None) -> EngineExit:
        """Stop every process of it. Engines that are not ours are only let go."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by the `X-Request-Id` they were sent with; no ids, no effect."""
        ...

    async def probe(self) -> None:
        """Have one token generated; raises `EngineError` when that fails."""
        ...

    async def read_memory(self) -> EngineReadings:
        """Measure what it holds."""
        ...

    async def read_state(self) -> EngineState:
        """Ask it what state it is in."""
        ...

    async def set_kv_limit(self, kv_bytes: int) -> None:
        """Change the KV limit of a running engine (capability `ELASTIC_KV`)."""
        ...

    async def detach(self) -> None:
        """Let go of it without stopping it."""
        ...
