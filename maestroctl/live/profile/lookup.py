"""Costs of a model on this machine: from its profile file, else from its geometry."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from maestroctl.config.profile_store import FoundProfile, Wanted, find_profile, profile_folders
from maestroctl.domain.llm import EngineSpec, ModelProfile, ModelSpec
from maestroctl.errors import ConfigError
from maestroctl.estimate.profile_from_geometry import estimate_profile, size_profile
from maestroctl.live.models.geometry import ModelGeometry
from maestroctl.live.profile.device import Device


def find_costs(
    model: ModelSpec,
    engine: EngineSpec,
    geometry: ModelGeometry,
    device: Device,
    tell: Callable[[str], None] = lambda _: None,
) -> ModelProfile:
    """The profile that the scheduler books and predicts with.

    Args:
        model: as declared; its lengths and its KV pool hold whatever was measured with.
        geometry: from the model's files.
        tell: gets a line for people: which file, or that there is none.

    Raises:
        ConfigError: the file that the model names has a mistake or measured another device kind.
        ValueError: the declared pool does not hold one block.
    """
    problems: list[str] = []
    wanted = Wanted(model, engine, device.name, device.threads)
    found = find_profile(wanted, profile_folders(os.environ), problems)
    for problem in problems:
        tell(problem)
    if found is None:
        tell(
            f"model {model.name}: there is no profile for {device.name}, its costs are estimated"
            f" from its geometry and corrected by what is observed; `maestroctl profile"
            f" {model.name}` measures them"
        )
        return estimate_costs(model, geometry, device)
    tell(f"model {model.name}: costs are {found.record.costs.origin}, from {found.path}")
    return apply_profile(found, model, geometry, device)


def estimate_costs(model: ModelSpec, geometry: ModelGeometry, device: Device) -> ModelProfile:
    """The profile from geometry alone."""
    whole_bytes = geometry.weights_bytes * model.tensor_parallel
    kind: Literal["cpu", "cuda"] = "cuda" if device.kind == "cuda" else "cpu"
    return estimate_profile(model, geometry.kv, whole_bytes, kind, geometry.max_model_len)


def apply_profile(
    found: FoundProfile, model: ModelSpec, geometry: ModelGeometry, device: Device
) -> ModelProfile:
    """The costs of a file with this fleet's lengths and KV pool.

    Raises:
        ConfigError: it was measured on another kind of device.
    """
    record = found.record
    if record.device_kind != device.kind:
        raise ConfigError(
            f"it is of a {record.device_kind} ({record.device}), and this is {device.name}",
            file=str(found.path),
            key="device.kind",
            hint=f"leave `profile` of model {model.name!r} out, or measure here",
        )
    most = record.costs.max_batch if record.saturated else None
    return size_profile(record.costs, geometry.kv, model, most_batch=most)
