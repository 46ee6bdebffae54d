"""Runs the steps of a measurement in order, on an engine of its own.

The engine lies in a folder of its own with a reaper beside it: however this process ends, no engine
is left. An interruption stops the engine first and then goes on up; what was measured stays in
`Measurements`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from maestroctl.domain.ids import DeviceName, EngineId
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.errors import CapabilityMissing, ConfigError
from maestroctl.estimate.memory_need import estimate_starting_bytes
from maestroctl.live import gpu
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.factory import find_capabilities
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.vllm_args import CPU_MAX_BATCHED_TOKENS
from maestroctl.live.models.sources import PreparedModel, prepare_model
from maestroctl.live.node.reaper import Reaper
from maestroctl.live.profile import steps
from maestroctl.live.profile.device import find_device
from maestroctl.live.profile.load import LoadClient
from maestroctl.live.profile.lookup import estimate_costs
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import ProfilePlan
from maestroctl.live.profile.record import Subject
from maestroctl.live.profile.steps import Bench

_CUDA_MAX_BATCHED_TOKENS = 2048
_BATCHED_FLAG = "--max-num-batched-tokens"
_SPARE_SHARE = 1.1
"""A second engine is started where there is this much of what it needs."""
_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a measurement is.

    Attributes:
        step: what is being measured.
        part: of the whole, 0 to 1.
        left_s: seconds that the rest should take.
    """

    step: str
    part: float
    left_s: float


Tell = Callable[[Progress], None]


async def find_subject(
    model: ModelSpec,
    engine: EngineSpec,
    threads: int | None,
    say: Callable[[str], None] = lambda _: None,
) -> Subject:
    """What is to be measured, its weights on this machine.

    Raises:
        ConfigError: engines of this kind are not ours to measure.
        MaestroError: the environment or the weights cannot be had.
    """
    if engine.kind not in (EngineKind.VLLM, EngineKind.VLLM_CPU) or model.source is None:
        raise ConfigError(
            f"model {model.name!r} runs on an engine of kind {engine.kind}, which is not measured",
            hint="only vllm and vllm-cpu are; others say their memory with `memory`",
        )
    capabilities = await find_capabilities(engine)
    prepared = await prepare_model(
        model.source, engine, tensor_parallel=model.tensor_parallel, progress=say
    )
    device = find_device(engine.kind, threads)
    return Subject(
        model=model,
        engine=engine,
        prepared=prepared,
        device=device,
        version=capabilities.version,
        estimate=estimate_costs(model, prepared.geometry, device),
        max_batched_tokens=_batched_tokens(model, engine),
    )


def fit_plan(subject: Subject, plan: ProfilePlan) -> ProfilePlan:
    """The plan as far as the model's length and its KV pool allow."""
    estimate = subject.estimate
    most = max(plan.most_batch, subject.model.max_batch)
    pool_tokens = estimate.kv_pool_bytes // max(1, estimate.kv_bytes_per_token)
    # One block is the engine's own.
    pool_tokens -= estimate.block_tokens
    plan = replace(plan, most_batch=most)
    return plan.fitted(estimate.max_model_len, pool_tokens, estimate.block_tokens)


async def measure(
    subject: Subject,
    plan: ProfilePlan,
    seen: Measurements,
    tell: Tell = lambda _: None,
    neighbour: Subject | None = None,
) -> None:
    """Measure everything the plan says; `seen` grows as it goes.

    Args:
        plan: from `fit_plan`.
        neighbour: whose engine runs beside for gamma; None = a second copy.

    Raises:
        EngineError: the engine failed; it is stopped. So it is when the task is cancelled.
    """
    clock = _Clock(plan.estimate_steps_s(subject.estimate), tell)
    async with _state_folder() as folder:
        order = _order(subject, plan, folder, "profile")
        engine = await _cold_starts(order, subject, plan, seen, clock)
        client: LoadClient | None = None
        try:
            client = LoadClient(engine.address, _SEED, _vocabulary(subject.prepared))
            bench = Bench(engine, client, plan, seen, order, subject.max_batched_tokens)
            await _on_engine(bench, clock)
            if plan.second_copy:
                await _beside(bench, neighbour or subject, plan, folder, clock)
        finally:
            if client is not None:
                await client.close()
            await asyncio.shield(engine.stop())
        clock.finish()


async def _cold_starts(
    order: EngineOrder, subject: Subject, plan: ProfilePlan, seen: Measurements, clock: _Clock
) -> ManagedEngine:
    tick = clock.begin("cold start")
    for number in range(plan.cold_starts):
        engine = await steps.start_cold(
            replace(order, generation=number + 1), subject.estimate.kv_pool_bytes, seen
        )
        tick((number + 1) / plan.cold_starts)
        if number + 1 < plan.cold_starts:
            await asyncio.shield(engine.stop())
    return engine


async def _on_engine(bench: Bench, clock: _Clock) -> None:
    await steps.warm_up(bench)
    await steps.measure_rounds(bench, clock.begin)
    tick = clock.begin("sleep")
    with contextlib.suppress(CapabilityMissing):  # the record says what is missing
        await steps.measure_sleep(bench, tick)


async def _beside(
    bench: Bench, other: Subject, plan: ProfilePlan, folder: Path, clock: _Clock
) -> None:
    """Gamma, where a second engine fits."""
    tick = clock.begin("second copy")
    need = estimate_starting_bytes(other.estimate, other.estimate.kv_pool_bytes)
    if _free_bytes(bench.order) < need * _SPARE_SHARE:
        return
    order = _order(other, plan, folder, "neighbour")
    engine = await steps.start_cold(order, other.estimate.kv_pool_bytes, Measurements())
    client: LoadClient | None = None
    try:
        client = LoadClient(engine.address, _SEED + 1, _vocabulary(other.prepared))
        await steps.measure_beside(bench, client, tick)
    finally:
        if client is not None:
            await client.close()
        await asyncio.shield(engine.stop())


def _free_bytes(order: EngineOrder) -> int:
    if order.devices[0] == gpu.CPU_DEVICE:
        return gpu.read_free_host_bytes()
    free = {reading.device: reading.free_bytes for reading in gpu.read_gpus()}
    return min(free.get(device, 0) for device in order.devices)


def _order(subject: Subject, plan: ProfilePlan, folder: Path, name: str) -> EngineOrder:
    model, is_gpu = subject.model, subject.device.kind == "cuda"
    gpus = [reading.device for reading in gpu.read_gpus()] if is_gpu else []
    devices: Sequence[DeviceName] = gpus[: model.tensor_parallel] or [gpu.CPU_DEVICE]
    return EngineOrder(
        engine_id=EngineId(f"{name}@here"),
        generation=1,
        model=replace(
            model, max_batch=plan.most_batch, max_model_len=subject.estimate.max_model_len
        ),
        engine=subject.engine,
        state_dir=folder,
        devices=tuple(devices),
        model_dir=subject.prepared.folder,
        threads=subject.device.threads,
    )


@asynccontextmanager
async def _state_folder() -> AsyncIterator[Path]:
    """A folder for engines, and a reaper that ends them should this process be killed."""
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="mc-profile-", dir=base if len(base) < 40 else "/tmp"))
    reaper = Reaper(folder)
    reaper.set_linger(0.0)
    try:
        yield folder
    finally:
        await asyncio.to_thread(reaper.dismiss)
        shutil.rmtree(folder, ignore_errors=True)


def _batched_tokens(model: ModelSpec, engine: EngineSpec) -> int:
    arguments = [*engine.args, *model.engine_args]
    for place, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == _BATCHED_FLAG:
            text = value or (arguments[place + 1] if place + 1 < len(arguments) else "")
            if text.isdigit():
                return int(text)
    is_cpu = engine.kind is EngineKind.VLLM_CPU
    return CPU_MAX_BATCHED_TOKENS if is_cpu else _CUDA_MAX_BATCHED_TOKENS


def _vocabulary(prepared: PreparedModel) -> int:
    """Size of the vocabulary; an ordinary one where the files do not say."""
    try:
        config = json.loads((prepared.folder / "config.json").read_text())
        return int(config.get("vocab_size") or config["text_config"]["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return 32_000


class _Clock:
    """How much is left, from what each step should take."""

    def __init__(self, planned_s: dict[str, float], tell: Tell) -> None:
        self._left = dict(planned_s)
        self._total_s = sum(planned_s.values())
        self._tell = tell

    def begin(self, step: str) -> Callable[[float], None]:
        """The step before is over; told how much of this one is done, says what is left."""
        names = list(self._left)
        for name in names[: names.index(step)] if step in names else []:
            del self._left[name]
        began_s = monotonic()
        planned_s = self._left.get(step, 0.0)
        rest_s = sum(self._left.values()) - planned_s

        def tick(part: float) -> None:
            took_s = monotonic() - began_s
            own_s = took_s * (1 - part) / part if part > 0.1 else max(0.0, planned_s - took_s)
            left_s = own_s + rest_s
            self._tell(Progress(step, 1.0 - left_s / max(self._total_s, left_s), left_s))

        tick(0.0)
        return tick

    def finish(self) -> None:
        """Everything is done."""
        self._tell(Progress("done", 1.0, 0.0))
