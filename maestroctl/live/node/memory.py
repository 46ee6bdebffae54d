"""How much memory models may use here: declared by the user, lowered to what is really there.

Free memory of the machine may only lower a budget. On a machine without a GPU the device is
``cpu``, and host memory is the same memory: sleeping weights go to disk there, so nothing is
booked twice and the host's own budget is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import HOST_DEVICE, DeviceName
from maestroctl.live.gpu import CPU_DEVICE, read_cpu, read_free_host_bytes

_RESERVE_SHARE = 0.1
"""Part of the memory left to the rest of the machine when the user names no budget."""
_RESERVE_LEAST_BYTES = 1 << 30


def first_budgets(node: NodeSpec, gpus: Mapping[DeviceName, int]) -> dict[DeviceName, int]:
    """Budget of each device when the daemon starts.

    Args:
        gpus: total bytes of each CUDA device; empty = this is a CPU node.
    """
    machine = read_cpu().total_bytes
    spare = machine - max(int(machine * _RESERVE_SHARE), _RESERVE_LEAST_BYTES)
    if not gpus:
        return {CPU_DEVICE: min(_or(node.memory_bytes, spare), machine), HOST_DEVICE: 0}
    budgets = {
        device: min(_or(node.memory_bytes, int(total * (1 - _RESERVE_SHARE))), total)
        for device, total in gpus.items()
    }
    return {**budgets, HOST_DEVICE: min(_or(node.host_memory_bytes, spare), machine)}


def lowered_budget(declared: int, held_by_engines: int) -> int:
    """The declared budget, or less when the machine has not that much left.

    Args:
        held_by_engines: what our own engines hold, which is theirs to use again.
    """
    return max(0, min(declared, held_by_engines + read_free_host_bytes()))


def _or(declared: int | None, measured: int) -> int:
    return measured if declared is None else declared
