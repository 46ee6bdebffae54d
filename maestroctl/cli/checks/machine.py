"""Python, processor, memory, disk, GPU."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from maestroctl import __version__
from maestroctl.cli.checks.check import Check, Level
from maestroctl.domain.units import GIB, format_bytes
from maestroctl.live import gpu

AREA = "machine"
_LEAST_FREE_MEMORY = 4 * GIB
"""One awake CPU engine of a small model takes about 3 GiB."""
_LEAST_FREE_DISK = 2 * GIB
_ENGINE_DISK = 8 * GIB
"""What `install.sh` needs for an engine environment and a small model."""
_NUMA = Path("/sys/devices/system/node")


def check_machine(home: Path, *, needs_gpu: bool) -> list[Check]:
    """Everything about this machine.

    Args:
        home: maestroctl's data folder.
        needs_gpu: a model of the fleet runs on a CUDA device here.
    """
    checks = [_python(), _cores(), _memory(), _disk(home)]
    return [*checks, *_gpus(needs_gpu=needs_gpu)]


def _python() -> Check:
    found = f"{platform.python_version()} ({sys.executable}), maestroctl {__version__}"
    level = Level.OK if sys.version_info >= (3, 11) else Level.MISSING
    return Check(AREA, "python", level, found, "" if level is Level.OK else "install Python 3.11")


def _cores() -> Check:
    threads = gpu.count_cpu_threads()
    total = os.cpu_count() or threads
    found = f"{threads} thread{'s' if threads > 1 else ''}"
    found += f" of {total} may be used" if threads < total else ""
    if threads >= 2:
        return Check(AREA, "cores", Level.OK, found)
    return Check(AREA, "cores", Level.WARN, found, "a CPU engine shares it with everything else")


def _memory() -> Check:
    reading = gpu.read_cpu()
    parts = [f"{format_bytes(reading.free_bytes)} free of {format_bytes(reading.total_bytes)}"]
    system = psutil.virtual_memory()
    if reading.total_bytes < system.total:
        parts.append(f"limited by a control group (the machine has {format_bytes(system.total)})")
    nodes = len(list(_NUMA.glob("node[0-9]*")))
    if nodes > 1:
        parts.append(f"{nodes} NUMA nodes, and an engine reads one")
    found = ", ".join(parts)
    if reading.free_bytes >= _LEAST_FREE_MEMORY:
        return Check(AREA, "memory", Level.OK, found)
    return Check(
        AREA, "memory", Level.WARN, found, "free some: a small model on the CPU takes about 3 GiB"
    )


def _disk(home: Path) -> Check:
    folder = home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free in {home}"
    if free < _LEAST_FREE_DISK:
        return Check(
            AREA, "disk", Level.MISSING, found, "free some, or set MAESTROCTL_HOME to a larger disk"
        )
    if free < _ENGINE_DISK:
        fix = f"a new engine environment needs {format_bytes(_ENGINE_DISK)}"
        return Check(AREA, "disk", Level.WARN, found, fix)
    return Check(AREA, "disk", Level.OK, found)


def _gpus(*, needs_gpu: bool) -> list[Check]:
    readings = gpu.read_gpus()
    if readings:
        return [
            Check(
                AREA,
                reading.device,
                Level.OK,
                f"{reading.description}, {format_bytes(reading.free_bytes)} free of"
                f" {format_bytes(reading.total_bytes)}, driver {reading.driver}",
            )
            for reading in readings
        ]
    listed = _nvidia_smi()
    if listed:
        fix = "pip install nvidia-ml-py, in the environment of maestroctl"
        return [Check(AREA, "gpu", Level.MISSING, f"{listed}, but NVML cannot be read", fix)]
    if needs_gpu:
        fix = 'set kind = "vllm-cpu" in [engine.default], or install the driver'
        return [Check(AREA, "gpu", Level.MISSING, "no CUDA device, and the fleet needs one", fix)]
    return [Check(AREA, "gpu", Level.OK, "no CUDA device: models run on the CPU")]


def _nvidia_smi() -> str:
    """What the driver's own tool lists; empty when it is absent or fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith("GPU")]
    return f"{len(lines)} GPU(s) in nvidia-smi" if done.returncode == 0 and lines else ""
