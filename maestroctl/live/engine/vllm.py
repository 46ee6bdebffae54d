"""vLLM, CUDA and CPU builds: one adapter, two ways to sleep.

Theory of operation::

            sleep                                  wake
    awake ─────────> asleep      pause(keep) → prefix cache reset → drop → verify
      │ ^                        restore → verify → resume → one token
      │ └──────────────┐
      │    suspend     │ resume
      └───────────> suspended    pause(keep) → running requests back to waiting → drop → verify
                                 restore → verify → resume

* *Drop* is `/sleep` on CUDA (level 1 keeps the weights in host memory, level 2 drops them) and our
  worker extension on the CPU, where `/sleep` answers 200 and does nothing.
* Sleep pauses with `keep` first, so a request that races with it waits instead of reaching an
  engine without weights. The prefix cache is then reset *without* touching running requests: the
  engine refuses that while any request still holds KV, which tells "not drained" better than any
  counter. The pause is taken back and the sleep fails.
* Suspend is the same with running requests sent back to the waiting queue; they are prefilled
  again after resume and go on where they were, with the same text.
* A 200 is never believed. After a drop the worker must say that weights and KV are gone, and the
  memory reading must have fallen; after a restore it must say that they are back.
* Level 2 needs `reload_weights` between the two halves of a wake, else the output is noise.

See also: `vllm_args` (command line), `vllm_cpu_worker` (runs inside the engine), `capabilities`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.domain.llm import EngineKind
from maestroctl.errors import EngineError
from maestroctl.live.engine import environment, kvcached
from maestroctl.live.engine.base import EngineAddress, EngineOrder, EngineState
from maestroctl.live.engine.capabilities import Capabilities, Capability
from maestroctl.live.engine.control import QUICK_S, SLOW_S
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.launch import LaunchSpec
from maestroctl.live.engine.logs import LogLimits
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.metrics import parse_metrics
from maestroctl.live.engine.vllm_args import build_vllm_argv, build_vllm_env

# A pause returns when the step in progress has ended; a long prefill step takes seconds.
_PAUSE_LIMIT_S = 60.0
_ABORT_FORMS = ("{}", "chatcmpl-{}", "cmpl-{}", "cmpl-{}-0", "resp_{}")
"""How vLLM's endpoints derive their request id from `X-Request-Id`."""


class VllmEngine(ManagedEngine):
    """One vLLM server of ours."""

    def __init__(self, order: EngineOrder, capabilities: Capabilities, python: str) -> None:
        super().__init__(order, capabilities)
        self._python = python
        self._asleep_tier: ResidencyTier | None = None  # None = awake, or not known to be asleep

    @property
    def _is_cpu(self) -> bool:
        return self._order.engine.kind is EngineKind.VLLM_CPU

    @property
    def _health_path(self) -> str:
        return "/health"

    # -- start --------------------------------------------------------------------------------

    def _make_launch(self, kv_bytes: int) -> LaunchSpec:
        order = self._order
        socket = environment.socket_path(order)
        return LaunchSpec(
            engine=order.engine_id,
            model=order.model.name,
            generation=order.generation,
            argv=build_vllm_argv(order, self._python, socket, kv_bytes, self._capabilities),
            env=build_vllm_env(order, self._capabilities, self._ipc_name),
            state_dir=order.state_dir,
            log_path=environment.log_path(order),
            spec_hash=environment.spec_hash(order),
            socket_path=socket,
            kv_bytes=kv_bytes,
            devices=tuple(order.devices),
            log_limits=LogLimits(max_bytes=order.engine.log_max_bytes),
        )

    def _make_address(self, identity: EngineIdentity) -> EngineAddress:
        return EngineAddress("http://engine", self._order.served_name, identity.socket_path)

    async def _after_ready(self, kv_bytes: int) -> None:
        if Capability.ELASTIC_KV in self._capabilities:
            await self.set_kv_limit(kv_bytes)

    async def adopt(self, identity: EngineIdentity) -> EngineReadings:
        """Take over an engine of an earlier daemon, awake or asleep."""
        readings = await super().adopt(identity)
        if self._kv_pool_bytes == 0:
            # Level 2 is the safe guess: its wake reads the weights again whatever was kept.
            self._asleep_tier = ResidencyTier.DISK
        elif (await self.read_state()).is_paused:
            # Its daemon died between a pause and the drop; nobody else would ever resume it.
            await self._unpause()
        return readings

    # -- reading ------------------------------------------------------------------------------

    async def read_state(self) -> EngineState:
        """Ask the engine for its state, load and memory."""
        paused = bool((await self.control.get_json("/is_paused")).get("is_paused"))
        metrics = parse_metrics(await self.control.get_text("/metrics"))
        workers: list[dict[str, Any]] = []
        if self._is_cpu and Capability.WORKER_SLEEP in self._capabilities:
            workers = await self.control.call_workers("maestro_status", limit_s=_PAUSE_LIMIT_S)
            sleeping = any(not worker["weights"] or not worker["kv"] for worker in workers)
        else:
            sleeping = bool((await self.control.get_json("/is_sleeping")).get("is_sleeping"))
            # Newer servers also call a paused engine sleeping; ours is asleep if we made it so.
            sleeping = sleeping and (not paused or self._asleep_tier is not None)
        return EngineState(
            is_sleeping=sleeping,
            is_paused=paused,
            has_weights=all(worker["weights"] for worker in workers) if workers else None,
            has_kv=all(worker["kv"] for worker in workers) if workers else None,
            weights_bytes=sum(int(worker.get("weights_bytes", 0)) for worker in workers),
            kv_bytes=sum(int(worker.get("kv_bytes", 0)) for worker in workers),
            num_running=metrics.num_running,
            num_waiting=metrics.num_waiting,
            kv_usage=metrics.kv_usage,
            kv_pool_bytes=0 if sleeping else metrics.kv_pool_bytes or self._kv_pool_bytes,
        )

    # -- sleep and wake -----------------------------------------------------------------------

    async def sleep(self, tier: ResidencyTier) -> EngineReadings:
        """Give up weights and KV; see the module text.

        Args:
            tier: HOST keeps the weights in host memory (CUDA alone), DISK drops them.
        """
        # On the CPU device and host memory are one, so both tiers mean: read again from disk.
        wanted = ResidencyTier.DISK if self._is_cpu else tier
        needed = {ResidencyTier.HOST: Capability.SLEEP_HOST}.get(wanted, Capability.SLEEP_DISK)
        self._capabilities.require(needed, self.engine_id)
        await self._pause()
        try:
            if not await self._reset_prefix_cache(running=False):
                raise EngineError(
                    f"engine '{self.engine_id}' cannot sleep: requests still hold its KV cache"
                )
        except EngineError:
            await self._unpause()
            raise
        return await self._drop(wanted)

    async def wake(self) -> EngineReadings:
        """Bring weights and KV back and have one token generated."""
        await self._restore()
        await self._unpause()
        await self.probe()
        return await self.read_memory()

    async def suspend(self) -> EngineReadings:
        """Freeze open requests, then give up weights and KV."""
        self._capabilities.require(Capability.SUSPEND, self.engine_id)
        await self._pause()
        if not await self._reset_prefix_cache(running=True):
            await self._unpause()
            raise EngineError(
                f"engine '{self.engine_id}' cannot be suspended: its running requests did not "
                "give their KV cache back"
            )
        tier = ResidencyTier.HOST
        if self._is_cpu or Capability.SLEEP_HOST not in self._capabilities:
            tier = ResidencyTier.DISK
        return await self._drop(tier)

    async def resume(self) -> EngineReadings:
        """Bring a suspended engine back; its open requests go on by themselves."""
        await self._restore()
        await self._unpause()
        return await self.read_memory()

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests by the `X-Request-Id` they were sent with."""
        if not request_ids or Capability.ABORT_REQUESTS not in self._capabilities:
            return  # an empty list would abort everything
        names = [form.format(request) for request in request_ids for form in _ABORT_FORMS]
        await self.control.post("/abort_requests", {"request_ids": names})

    async def set_kv_limit(self, kv_bytes: int) -> None:
        """Change the limit that kvcached keeps for this engine."""
        self._capabilities.require(Capability.ELASTIC_KV, self.engine_id)
        await asyncio.to_thread(kvcached.write_kv_limit, self._ipc_name, kv_bytes)
        if self._kv_pool_bytes:
            self._kv_pool_bytes = kv_bytes
        self._kv_start_bytes = kv_bytes

    # -- steps --------------------------------------------------------------------------------

    @property
    def _ipc_name(self) -> str:
        """Name of the kvcached limit file: the same for a daemon that adopts this engine."""
        # Not the generation: an adopting daemon may count those anew.
        text = f"{self._order.state_dir}\0{self.engine_id}"
        return kvcached.make_ipc_name(hashlib.sha256(text.encode()).hexdigest()[:24])

    async def _pause(self) -> None:
        # `clear_cache` must be off: on, it drops the KV of running requests although it is
        # documented as ignored in this mode.
        await self.control.post("/pause?mode=keep&clear_cache=false", limit_s=_PAUSE_LIMIT_S)
        if not (await self.control.get_json("/is_paused")).get("is_paused"):
            raise EngineError(f"engine '{self.engine_id}' was told to pause and did not")

    async def _unpause(self) -> None:
        if (await self.control.get_json("/is_paused")).get("is_paused"):
            await self.control.post("/resume", limit_s=QUICK_S)
        if (await self.control.get_json("/is_paused")).get("is_paused"):
            raise EngineError(f"engine '{self.engine_id}' was told to resume and did not")

    async def _reset_prefix_cache(self, *, running: bool) -> bool:
        suffix = "?reset_running_requests=true" if running else ""
        path = "/reset_prefix_cache" + suffix
        answer = await self.control.post(path, limit_s=_PAUSE_LIMIT_S)
        if "success" in answer:
            return bool(answer["success"])
        # The oldest versions answer with nothing: fall back on the counter.
        return running or (await self.read_state()).num_running == 0

    async def _drop(self, tier: ResidencyTier) -> EngineReadings:
        readings = await self.read_memory()
        if self._asleep_tier is not None and (await self.read_state()).is_sleeping:
            return readings  # nothing left to give
        before = await self._read_held_bytes(readings)
        if self._is_cpu:
            held = await self.read_state()
            least_bytes = held.weights_bytes + held.kv_bytes
            await self.control.call_workers("maestro_drop")
        else:
            least_bytes = self._weights_on_disk_bytes() + self._kv_pool_bytes
            level = 1 if tier is ResidencyTier.HOST else 2
            await self.control.post(f"/sleep?level={level}&mode=keep", limit_s=SLOW_S)
        self._asleep_tier = tier
        state = await self.read_state()
        if not state.is_sleeping:
            raise EngineError(
                f"engine '{self.engine_id}' was told to sleep, but says that it still holds "
                f"weights ({state.weights_bytes} bytes) or KV ({state.kv_bytes} bytes)"
            )
        self._kv_pool_bytes = 0
        return await self._verify_freed(before, least_bytes, "sleep")

    async def _restore(self) -> None:
        if self._is_cpu:
            await self.control.call_workers("maestro_restore")
        else:
            await self._wake_cuda()
        self._asleep_tier = None
        state = await self.read_state()
        if state.is_sleeping:
            raise EngineError(
                f"engine '{self.engine_id}' was told to wake, but says weights: "
                f"{state.has_weights}, KV: {state.has_kv}"
            )
        self._kv_pool_bytes = self._kv_start_bytes

    async def _wake_cuda(self) -> None:
        if self._asleep_tier is ResidencyTier.DISK:
            await self.control.post("/wake_up?tags=weights", limit_s=SLOW_S)
            await self.control.post("/collective_rpc", {"method": "reload_weights"}, limit_s=SLOW_S)
            await self.control.post("/wake_up?tags=kv_cache", limit_s=SLOW_S)
        else:
            await self.control.post("/wake_up", limit_s=SLOW_S)

    def _weights_on_disk_bytes(self) -> int:
        """Bytes of weights per device, from the files; 0 when they are not known."""
        folder = self._order.model_dir
        if folder is None:
            return 0
        total = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
        return total // max(1, self._order.model.tensor_parallel)
