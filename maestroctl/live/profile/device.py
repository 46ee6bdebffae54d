"""What this machine's device is called in profiles."""

from __future__ import annotations

from dataclasses import dataclass

from maestroctl.domain.llm import EngineKind
from maestroctl.live import gpu


@dataclass(frozen=True, slots=True)
class Device:
    """Where models run.

    Attributes:
        name: product name; for a CPU with the threads an engine gets.
        kind: ``cpu`` or ``cuda``.
        threads: of one engine; None on a GPU.
    """

    name: str
    kind: str
    threads: int | None = None


def find_device(kind: EngineKind, threads: int | None = None) -> Device:
    """The device on which engines of a kind run here.

    Args:
        threads: that a node gives each engine; None = every core.
    """
    gpus = gpu.read_gpus() if kind is EngineKind.VLLM else []
    if gpus:
        return Device(gpus[0].description, "cuda")
    count = threads or gpu.count_cpu_threads()
    model = gpu.read_cpu().description.rpartition(", ")[0]
    return Device(f"{model}, {count} threads", "cpu", count)
