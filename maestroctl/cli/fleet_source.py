"""Which fleet a command works on: a file, or this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from maestroctl.config.fleet import LoadedFleet, load_fleet
from maestroctl.live import gpu
from maestroctl.scheduler.registry import KNOWN_POLICIES


def load(file: Path | None, overrides: Mapping[str, Any] | None = None) -> LoadedFleet:
    """The fleet of `file`, or this machine's.

    Raises:
        ConfigErrors: every mistake in the file and in `overrides`.
    """
    return load_fleet(
        file, overrides or {}, cuda=bool(gpu.read_gpus()), known_policies=KNOWN_POLICIES
    )


def load_fleet_for_serve(file: Path | None, listen: str | None) -> LoadedFleet:
    """The same, with the gateway's address replaced when `listen` is given."""
    return load(file, {"coordinator.listen": listen} if listen else {})
