"""From measurements to the record that is written; what is missing comes from geometry.

Memory is booked by these figures, and what a reading shows over them stops admissions. So they are
the largest that were seen, and each has a margin for what a few readings do not show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median

from maestroctl import __version__
from maestroctl.config.profile_store import cost_arguments
from maestroctl.domain.llm import EngineSpec, ModelProfile, ModelSpec
from maestroctl.domain.profile import MEASURED, ProfiledEngine, ProfileRecord
from maestroctl.domain.units import MIB
from maestroctl.live.models.sources import PreparedModel
from maestroctl.live.profile.device import Device
from maestroctl.live.profile.measurements import Measurements
from maestroctl.live.profile.plan import ProfilePlan

_MARGIN_BYTES = 64 * MIB
"""Readings of one engine differ by this much from one to the next."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        estimate: from geometry; fills what was not measured.
        max_batched_tokens: tokens of one iteration.
    """

    model: ModelSpec
    engine: EngineSpec
    prepared: PreparedModel
    device: Device
    version: str
    estimate: ModelProfile
    max_batched_tokens: int


def make_record(subject: Subject, seen: Measurements, plan: ProfilePlan) -> ProfileRecord | None:
    """The record; None when not even the costs of an iteration are known.

    Args:
        plan: as it was fitted to the engine.
    """
    fit = seen.fit()
    if fit is None:
        return None
    missing: list[str] = []
    costs = _with_memory(subject, seen, missing)
    costs = _with_times(costs, seen, missing)
    cost = fit.cost
    if seen.slowdowns:
        cost = replace(cost, gamma=max(1.0, median(seen.slowdowns)))
    else:
        cost = replace(cost, gamma=subject.estimate.iteration.gamma)
    check = seen.check(cost, subject.max_batched_tokens)
    if check is None:
        missing.append("check")
    max_batch, saturated = seen.paying_batch(plan.short_tokens)
    model, device = subject.model, subject.device
    made_at = datetime.now().astimezone().isoformat(timespec="seconds")
    return ProfileRecord(
        costs=replace(
            costs,
            iteration=cost,
            max_batch=max_batch,
            max_model_len=subject.prepared.geometry.max_model_len,
            origin=MEASURED,
        ),
        geometry=subject.prepared.geometry.kv,
        device=device.name,
        device_kind=device.kind,
        engine=ProfiledEngine(
            kind=subject.engine.kind,
            version=subject.version,
            args=cost_arguments([*subject.engine.args, *model.engine_args]),
            tensor_parallel=model.tensor_parallel,
            threads=device.threads,
            max_batched_tokens=subject.max_batched_tokens,
        ),
        source=str(model.source or ""),
        made_at=made_at,
        maestroctl=__version__,
        missing=tuple(missing),
        num_blocks=seen.num_blocks,
        gamma_measured=bool(seen.slowdowns),
        saturated=saturated,
        decode=seen.decode_points(),
        prefill=seen.prefill_points(),
        fit=fit.quality,
        check=check,
    )


def kv_mismatch(subject: Subject, seen: Measurements) -> str | None:
    """What the engine's blocks say against the geometry; None when they agree within 2 %."""
    tokens = seen.num_blocks * seen.block_tokens
    if tokens == 0 or seen.kv_pool_bytes == 0:
        return None
    by_engine = seen.kv_pool_bytes / tokens
    by_geometry = subject.estimate.kv_bytes_per_token
    block_bytes = by_geometry * seen.block_tokens
    # The pool is cut to whole blocks, so up to one of them is in no block.
    if abs(by_engine - by_geometry) * tokens <= 0.02 * seen.kv_pool_bytes + block_bytes:
        return None
    return (
        f"the engine made {seen.num_blocks} blocks of {seen.block_tokens} tokens,"
        f" {by_engine:.0f} bytes per token; the model's geometry says {by_geometry}"
    )


def _with_memory(subject: Subject, seen: Measurements, missing: list[str]) -> ModelProfile:
    estimate = subject.estimate
    alpha = estimate.kv_bytes_per_token
    if kv_mismatch(subject, seen) is not None:
        alpha = -(-seen.kv_pool_bytes // (seen.num_blocks * seen.block_tokens))
    estimate = replace(estimate, kv_bytes_per_token=alpha)
    if not seen.awake_bytes or not seen.asleep_bytes:
        missing.append("memory")
        return estimate
    awake, asleep = max(seen.awake_bytes), max(seen.asleep_bytes)
    # Loaded weights never take less than their files.
    least = subject.prepared.geometry.weights_bytes
    is_cpu = subject.device.kind == "cpu"
    return replace(
        estimate,
        weights_bytes=max(least, awake - asleep - seen.kv_held_bytes),
        context_bytes=asleep,
        peak_bytes=max(0, seen.loaded_bytes - awake) + _MARGIN_BYTES,
        start_peak_bytes=max(0, seen.start_peak_bytes - awake) + _MARGIN_BYTES,
        host_asleep_bytes=0
        if is_cpu
        else max(0, seen.host_asleep_bytes - seen.host_awake_bytes) + _MARGIN_BYTES,
    )


def _with_times(costs: ModelProfile, seen: Measurements, missing: list[str]) -> ModelProfile:
    if not seen.cold_s:
        missing.append("cold_start_s")
    if not seen.sleep_s or not seen.wake_s:
        missing.append("wake_s")
        return replace(costs, cold_start_s=_median(seen.cold_s, costs.cold_start_s))
    return replace(
        costs,
        cold_start_s=_median(seen.cold_s, costs.cold_start_s),
        wake_s=median(seen.wake_s),
        sleep_s=median(seen.sleep_s),
    )


def _median(values: list[float], otherwise: float) -> float:
    return median(values) if values else otherwise
