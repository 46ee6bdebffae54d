"""Where an engine would run and with which KV limit: the options of an activation.

A sleeping or suspended engine has one option: its own devices and limit. A stopped one may be
placed on any set of `tensor_parallel` devices, with the full KV pool of its profile, with less
when less is free, and with no less than one sequence of full length needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

from maestroctl.domain.engine import EngineStatus, ResidencyTier
from maestroctl.domain.ids import HOST_DEVICE, DeviceName
from maestroctl.domain.llm import ModelProfile, ModelSpec
from maestroctl.domain.units import format_bytes
from maestroctl.estimate.memory_need import estimate_least_start_bytes
from maestroctl.scheduler.node.engine_state import EngineState
from maestroctl.scheduler.node.footprint import estimate_footprint
from maestroctl.scheduler.node.state import NodeState

MAX_PLACEMENTS = 70  # 4 of 8 devices


@dataclass(frozen=True, slots=True)
class Activation:
    """One way to bring an engine to life.

    Attributes:
        wanted: what the engine will have booked, per device, host included.
    """

    devices: tuple[DeviceName, ...]
    kv_limit_bytes: int
    wanted: Mapping[DeviceName, int]


def list_activations(state: NodeState, engine: EngineState, *, least: bool) -> list[Activation]:
    """Options for an engine at rest.

    Args:
        state: of the node.
        engine: STOPPED, SLEEPING or SUSPENDED.
        least: with the smallest KV limit instead of the full pool.
    """
    if engine.status is EngineStatus.SLEEPING:
        wanted = state.footprint(engine, EngineStatus.WAKING)
        return [Activation(engine.devices, engine.kv_limit_bytes, wanted)]
    if engine.status is EngineStatus.SUSPENDED:
        wanted = state.footprint(engine, EngineStatus.RESUMING)
        return [Activation(engine.devices, engine.kv_limit_bytes, wanted)]
    profile = engine.need_profile()
    fixed = estimate_least_start_bytes(profile) - profile.kv_least_bytes
    options = []
    for devices in _placements(state, engine.spec):
        budget = min(state.books.budgets[device] for device in devices)
        pool = min(profile.kv_pool_bytes, budget - fixed)
        # An elastic limit begins at its floor and follows the bookings (section 8).
        small = least or engine.abilities.elastic_kv
        kv_limit = profile.kv_least_bytes if small else max(pool, profile.kv_least_bytes)
        options.append(start_with(profile, devices, kv_limit))
    return options


def start_with(
    profile: ModelProfile, devices: tuple[DeviceName, ...], kv_limit_bytes: int
) -> Activation:
    """A start on these devices with this KV limit."""
    wanted = estimate_footprint(
        profile, EngineStatus.STARTING, ResidencyTier.DISK, devices, kv_limit_bytes
    )
    return Activation(devices, kv_limit_bytes, wanted)


def explain_misfit(
    profile: ModelProfile, spec: ModelSpec, budgets: Mapping[DeviceName, int]
) -> str | None:
    """Why the model can never run with these budgets; None when it can."""
    devices = sorted(
        ((size, name) for name, size in budgets.items() if name != HOST_DEVICE), reverse=True
    )
    wanted = spec.tensor_parallel
    if len(devices) < wanted:
        return f"{spec.name!r} needs {wanted} devices, this node has {len(devices)}"
    need = estimate_least_start_bytes(profile)
    size, name = devices[wanted - 1]
    if need <= size:
        return None
    terms = {
        "weights": profile.weights_bytes,
        "context": profile.context_bytes,
        "peak": profile.peak_bytes,
        "start": profile.start_peak_bytes,
        "least KV": profile.kv_least_bytes,
    }
    parts = ", ".join(f"{label} {format_bytes(size)}" for label, size in terms.items())
    where = f"{name} gives {format_bytes(size)}"
    if wanted > 1:
        where = f"the {wanted} largest devices give {format_bytes(size)} each"
    return f"{spec.name!r} needs {format_bytes(need)} at least ({parts}), {where}"


def _placements(state: NodeState, spec: ModelSpec) -> Iterator[tuple[DeviceName, ...]]:
    return islice(combinations(state.compute_devices(), spec.tensor_parallel), MAX_PLACEMENTS)
