"""Elastic KV: the limit that kvcached keeps for one engine.

kvcached maps KV pages on demand up to a limit in a shared-memory file: three native 64-bit
integers, ``total, used, prealloc``, guarded by `flock`. Any process of the same user may change
``total``; the engine follows at its next allocation. Lowering it below ``used`` evicts nothing:
the caller waits until requests end.

The file is written directly because kvcached is installed in the engine's environment, not ours.
Source: kvcached 0.1.6, `kvcached/cli/utils.py` (`MemInfoStruct`, `RwLockedShm`).
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from maestroctl.errors import EngineError

SHM_DIR = Path("/dev/shm")
_LAYOUT = struct.Struct("=qqq")
_MAX_NAME = 64  # kvcached cuts longer names


@dataclass(frozen=True, slots=True)
class KvLimit:
    """The limit file of one engine, bytes.

    Attributes:
        limit_bytes: what the engine may map.
        used_bytes: mapped and holding KV.
        prealloc_bytes: mapped in advance.
    """

    limit_bytes: int
    used_bytes: int
    prealloc_bytes: int


def make_ipc_name(token: str) -> str:
    """Name of an engine's limit file; unique because the token is.

    Args:
        token: random text of letters and digits.
    """
    return f"maestroctl-{token}"[:_MAX_NAME]


def kvcached_environment(ipc_name: str) -> dict[str, str]:
    """Variables that switch kvcached on in an engine."""
    return {
        "ENABLE_KVCACHED": "true",
        "KVCACHED_AUTOPATCH": "1",
        "KVCACHED_IPC_NAME": ipc_name,
    }


def read_kv_limit(ipc_name: str, *, folder: Path = SHM_DIR) -> KvLimit | None:
    """The limit of an engine, or None while it has not made its file."""
    try:
        with (folder / ipc_name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            data = file.read(_LAYOUT.size)
    except FileNotFoundError:
        return None
    return KvLimit(*_LAYOUT.unpack(data)) if len(data) == _LAYOUT.size else None


def write_kv_limit(ipc_name: str, limit_bytes: int, *, folder: Path = SHM_DIR) -> KvLimit:
    """Set the limit of a running engine and read it back.

    Returns:
        The file as it is now; `used_bytes` above the limit means that the engine still holds
        more and will shrink as requests end.

    Raises:
        EngineError: the engine has no such file, or the value did not stay.
        ValueError: the limit is not positive.
    """
    if limit_bytes <= 0:
        raise ValueError(f"a KV limit is positive, found {limit_bytes}")
    try:
        with (folder / ipc_name).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            data = file.read(_LAYOUT.size)
            if len(data) != _LAYOUT.size:
                raise EngineError(f"kvcached's file {ipc_name} has {len(data)} bytes, not 24")
            # Only the first field is ours; the engine writes the others under the same lock.
            os.pwrite(file.fileno(), struct.pack("=q", limit_bytes), 0)
    except FileNotFoundError:
        raise EngineError(
            f"kvcached's file {folder / ipc_name} does not exist",
            hint="is kvcached active in this engine? its log says so at start",
        ) from None
    now = read_kv_limit(ipc_name, folder=folder)
    if now is None or now.limit_bytes != limit_bytes:
        raise EngineError(f"kvcached's limit was set to {limit_bytes}, but reads {now}")
    return now
