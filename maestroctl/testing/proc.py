"""Readings of other processes from ``/proc``: memory, processor time, descriptors. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def rss_bytes(pid: int) -> int:
    """Resident set size of one process; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time used so far, user and system, by these processes together."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            # The name, field 2, may hold spaces; fields 14 and 15 are counted behind it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def num_descriptors(pid: int) -> int:
    """Open file descriptors of one process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def processes_with_environment(entry: str) -> list[int]:
    """Live processes whose environment holds ``NAME=value``; those of others are passed over."""
    wanted = entry.encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return sorted(found)
