"""Readings of devices and of the machine: NVML per device and process, CPU and free memory.

NVML's binding is imported late and is optional: without it, or without a driver, there simply is
no GPU. Nothing here changes a device.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from maestroctl.domain.ids import DeviceName

CPU_DEVICE = DeviceName("cpu")


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device as its driver describes it, bytes.

    Attributes:
        device: ``cuda:0`` or ``cpu``.
        description: product name.
        total_bytes: memory it has.
        free_bytes: memory nobody uses now.
        driver: driver version; empty for the CPU.
    """

    device: DeviceName
    description: str
    total_bytes: int
    free_bytes: int
    driver: str = ""


def read_gpus() -> list[DeviceReading]:
    """Every CUDA device; empty without a driver or without the NVML binding."""
    readings = []
    with _nvml() as nvml:
        if nvml is None:
            return []
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            readings.append(
                DeviceReading(
                    device=DeviceName(f"cuda:{index}"),
                    description=_text(nvml.nvmlDeviceGetName(handle)),
                    total_bytes=int(memory.total),
                    free_bytes=int(memory.free),
                    driver=driver,
                )
            )
    return readings


def read_process_bytes(pids: Iterable[int]) -> dict[DeviceName, int]:
    """Device memory that some processes hold together, per device; empty without a GPU.

    Args:
        pids: process ids as this process sees them. In a container with its own process ids NVML
            reports the host's, and nothing matches.
    """
    wanted = set(pids)
    held: dict[DeviceName, int] = {}
    with _nvml() as nvml:
        if nvml is None:
            return {}
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            total = 0
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid in wanted:
                    total += int(process.usedGpuMemory or 0)
            held[DeviceName(f"cuda:{index}")] = total
    return held


def read_used_bytes(devices: Iterable[DeviceName]) -> int:
    """Memory in use by anybody on the fullest of some devices; 0 without a GPU."""
    used = {one.device: one.total_bytes - one.free_bytes for one in read_gpus()}
    return max((used.get(device, 0) for device in devices), default=0)


def read_cpu() -> DeviceReading:
    """This machine's processor and memory."""
    return DeviceReading(
        device=CPU_DEVICE,
        description=_cpu_model(),
        total_bytes=_total_host_bytes(),
        free_bytes=read_free_host_bytes(),
    )


def read_free_host_bytes() -> int:
    """Memory that could still be used: the least of what the system, its control group and its
    memory nodes say.

    vLLM on the CPU reads the memory node, the kernel kills by control group; the system's own
    figure may be gigabytes above both.
    """
    readings = [psutil.virtual_memory().available]
    for limit, used in _cgroup_readings():
        readings.append(max(0, limit - used))
    node_free = _numa_free_bytes()
    if node_free is not None:
        readings.append(node_free)
    return min(readings)


def count_cpu_threads() -> int:
    """Hardware threads that this process may use."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised; None when there is none."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {count_cpu_threads()} threads"
    except OSError:
        pass
    return f"CPU, {count_cpu_threads()} threads"


def _total_host_bytes() -> int:
    limits = [limit for limit, _ in _cgroup_readings()]
    return min([psutil.virtual_memory().total, *limits])


def _cgroup_readings() -> list[tuple[int, int]]:
    """(limit, used without reclaimable cache) of this process's control group, where limited."""
    readings = []
    for folder, limit_name, used_name, cache_key in (
        (_cgroup_folder(), "memory.max", "memory.current", "inactive_file"),
        (
            Path("/sys/fs/cgroup/memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        try:
            limit = int((folder / limit_name).read_text())
            used = int((folder / used_name).read_text())
            stat = dict(
                line.split()[:2] for line in (folder / "memory.stat").read_text().splitlines()
            )
            cache = int(stat.get(cache_key, 0))
        except (OSError, ValueError):
            continue
        if limit < 1 << 60:  # version 1 writes a huge number for "no limit"
            readings.append((limit, max(0, used - cache)))
    return readings


def _cgroup_folder() -> Path:
    root = Path("/sys/fs/cgroup")
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return root / line[3:].strip().lstrip("/")
    except OSError:
        pass
    return root


def _numa_free_bytes() -> int | None:
    """Free and reclaimable memory of all memory nodes together; None where there are none."""
    total = 0
    found = False
    for path in sorted(Path("/sys/devices/system/node").glob("node[0-9]*/meminfo")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        found = True
        for line in lines:
            fields = line.split()
            if fields[2] in ("MemFree:", "Inactive(file):", "Active(file):", "SReclaimable:"):
                total += int(fields[3]) * 1024
    return total if found else None
