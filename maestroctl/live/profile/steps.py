"""The steps of a measurement; each adds to `Measurements` as soon as a figure is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

from maestroctl.domain.engine import EngineReadings, ResidencyTier
from maestroctl.errors import EngineError
from maestroctl.live import gpu
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.factory import make_engine
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.metrics import parse_metrics
from maestroctl.live.profile.load import LoadClient
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import Group, ProfilePlan, Shape
from maestroctl.live.profile.samples import decode_sample, prefill_sample

_LOOK_S = 0.5
"""Between two readings of memory while an engine starts."""
_NEIGHBOUR = [(16, 64)] * 4
"""What the second engine works on while the first is measured."""
_BESIDE_SHAPES: tuple[Shape, ...] = ((1, 16), (4, 16))
_BESIDE_ROUNDS = 3

Tick = Callable[[float], None]
"""Told how much of a step is done, 0 to 1."""


@dataclass(slots=True)
class Bench:
    """One engine that is up, and what is measured on it."""

    engine: ManagedEngine
    client: LoadClient
    plan: ProfilePlan
    seen: Measurements
    order: EngineOrder
    max_batched_tokens: int


async def start_cold(order: EngineOrder, kv_bytes: int, seen: Measurements) -> ManagedEngine:
    """Start an engine, time it, and watch what it holds meanwhile."""
    engine = await make_engine(order)
    assert isinstance(engine, ManagedEngine)
    before_bytes = gpu.read_used_bytes(order.devices)
    began_s = perf_counter()
    starting = asyncio.ensure_future(engine.start(kv_bytes))
    try:
        while not starting.done():
            await asyncio.wait({starting}, timeout=_LOOK_S)
            with contextlib.suppress(EngineError):  # before its process is there
                held = await _held_bytes(engine, before_bytes, order)
                seen.start_peak_bytes = max(seen.start_peak_bytes, held)
        await starting
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    seen.cold_s.append(perf_counter() - began_s)
    seen.kv_pool_bytes = kv_bytes
    await _note_awake(engine, seen, before_bytes, order)
    return engine


async def warm_up(bench: Bench) -> None:
    """First requests pay for what is made on first use."""
    for batch in (1, min(4, bench.plan.most_batch)):
        await bench.client.together([(bench.plan.short_tokens, 8)] * batch)


async def measure_rounds(bench: Bench, begin: Callable[[str], Tick]) -> None:
    """Rounds of decoding by batch, prefill by length and held-out groups.

    They take turns because a machine is now faster, now slower: what is fitted and what it is
    checked with shall have met the same. Rounds end when every spread is small, when they are
    used up, or when their time is.

    Args:
        begin: told the name of each round; gives what to tell of its progress.
    """
    plan, seen = bench.plan, bench.seen
    began_s = perf_counter()
    for number in range(plan.most_rounds):
        tick = begin(f"round {number + 1}")
        parts = _parts(bench)
        for place, part in enumerate(parts):
            await part()
            tick((place + 1) / len(parts))
        took_s = perf_counter() - began_s
        is_small = seen.worst_spread() <= plan.spread_target
        if number + 1 >= plan.least_rounds and (is_small or took_s > plan.rounds_limit_s):
            break
    await _read_under_load(bench)


def _parts(bench: Bench) -> list[Callable[[], Awaitable[None]]]:
    """One round."""
    plan, seen = bench.plan, bench.seen

    async def decode(batch: int, prompt: int) -> None:
        traces = await bench.client.together([(prompt, plan.decode_tokens)] * batch)
        sample = decode_sample(traces)
        if sample is not None:
            seen.decode.setdefault((batch, prompt), []).append(sample)

    async def prefill(tokens: int) -> None:
        sample = prefill_sample(await bench.client.send(tokens, 2), bench.max_batched_tokens)
        seen.prefill.setdefault(tokens, []).append(sample)

    async def check(group: Group) -> None:
        traces = await bench.client.together(group)
        seen.checks.append((group, [trace.stage_s for trace in traces]))

    numbers = bench.client.numbers(plan.numbers_needed())
    return [
        *(partial(decode, *shape) for shape in plan.decode_shapes()),
        *(partial(prefill, tokens) for tokens in plan.prefill_tokens),
        *(partial(check, group) for group in plan.check_groups(numbers, plan.batches[-1])),
    ]


async def measure_sleep(bench: Bench, tick: Tick) -> None:
    """Sleep and wake again and again; what stays held while asleep."""
    seen, engine = bench.seen, bench.engine
    tier = ResidencyTier.DISK if bench.order.devices[0] == gpu.CPU_DEVICE else ResidencyTier.HOST
    for number in range(bench.plan.sleep_cycles):
        used_bytes = gpu.read_used_bytes(bench.order.devices)
        awake = await engine.read_memory()
        began_s = perf_counter()
        asleep = await engine.sleep(tier)
        slept_s = perf_counter()
        seen.sleep_s.append(slept_s - began_s)
        seen.asleep_bytes.append(_asleep_bytes(awake, asleep, used_bytes, bench))
        seen.host_asleep_bytes = max(seen.host_asleep_bytes, asleep.host_bytes)
        began_s = perf_counter()
        await engine.wake()
        seen.wake_s.append(perf_counter() - began_s)
        seen.awake_bytes.append((await engine.read_memory()).device_bytes or seen.awake_bytes[-1])
        tick((number + 1) / bench.plan.sleep_cycles)


async def measure_beside(bench: Bench, neighbour: LoadClient, tick: Tick) -> None:
    """Decoding alone and beside a neighbour that decodes; gamma is the ratio."""
    alone = await _decode_times(bench, tick, 0.0)

    async def keep_busy() -> None:
        while True:
            await neighbour.together(_NEIGHBOUR)

    busy = asyncio.ensure_future(keep_busy())
    try:
        await asyncio.sleep(0)
        beside = await _decode_times(bench, tick, 0.5)
        if busy.done():
            await busy
    finally:
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    for shape in _BESIDE_SHAPES:
        if alone[shape] and beside[shape]:
            bench.seen.slowdowns.append(median(beside[shape]) / median(alone[shape]))


# --- inside ---------------------------------------------------------------------------------------


async def _decode_times(bench: Bench, tick: Tick, from_part: float) -> dict[Shape, list[float]]:
    times: dict[Shape, list[float]] = {shape: [] for shape in _BESIDE_SHAPES}
    for number in range(_BESIDE_ROUNDS):
        for batch, prompt in _BESIDE_SHAPES:
            traces = await bench.client.together([(prompt, bench.plan.decode_tokens)] * batch)
            sample = decode_sample(traces)
            if sample is not None:
                times[batch, prompt].append(sample[0].seconds / sample[0].iterations)
        tick(from_part + 0.5 * (number + 1) / _BESIDE_ROUNDS)
    return times


async def _read_under_load(bench: Bench) -> None:
    plan = bench.plan
    run = asyncio.ensure_future(
        bench.client.together([(plan.short_tokens, plan.decode_tokens)] * plan.batches[-1])
    )
    try:
        await asyncio.wait({run}, timeout=1.0)
        readings = await bench.engine.read_memory()
        bench.seen.loaded_bytes = max(bench.seen.loaded_bytes, readings.device_bytes)
    finally:
        await run


async def _note_awake(
    engine: ManagedEngine, seen: Measurements, before_bytes: int, order: EngineOrder
) -> None:
    seen.awake_bytes.append(await _held_bytes(engine, before_bytes, order))
    seen.host_awake_bytes = (await engine.read_memory()).host_bytes
    state = await engine.read_state()
    seen.kv_held_bytes = state.kv_bytes or state.kv_pool_bytes
    metrics = parse_metrics(await engine.control.get_text("/metrics"))
    seen.num_blocks, seen.block_tokens = metrics.num_kv_blocks, metrics.block_tokens


async def _held_bytes(engine: ManagedEngine, before_bytes: int, order: EngineOrder) -> int:
    """What the engine holds on its device; where the driver cannot tell processes apart, what the
    device holds more than before."""
    readings = await engine.read_memory()
    if readings.device_bytes or order.devices[0] == gpu.CPU_DEVICE:
        return readings.device_bytes
    return max(0, gpu.read_used_bytes(order.devices) - before_bytes)


def _asleep_bytes(
    awake: EngineReadings, asleep: EngineReadings, used_bytes: int, bench: Bench
) -> int:
    if awake.device_bytes or bench.order.devices[0] == gpu.CPU_DEVICE:
        return asleep.device_bytes
    freed = used_bytes - gpu.read_used_bytes(bench.order.devices)
    return max(0, bench.seen.awake_bytes[-1] - freed)
