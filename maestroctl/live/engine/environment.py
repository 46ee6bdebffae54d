"""Files and environment variables that an engine process is given."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from maestroctl.live.engine import vllm_cpu_worker
from maestroctl.live.engine.base import EngineOrder
from maestroctl.live.engine.identity import OWN_FOLDER, ipc_dir, safe_name
from maestroctl.live.transport.unix_path import fits_socket

EXTENSION_MODULE = "maestroctl_cpu_worker"
EXTENSION_CLASS = f"{EXTENSION_MODULE}.MaestroWorkerExtension"
_IPC_NAME = "x" * 36  # as long as those of the sockets that vLLM makes between its processes

# Passed on from the daemon. Everything else stays out: an engine has no business with the
# daemon's secrets, and a stray PYTHONPATH would put foreign packages into its environment.
_PASSED_NAMES = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "TERM", "NO_PROXY")
) | frozenset(("LD_LIBRARY_PATH", "LD_PRELOAD", "HTTP_PROXY", "HTTPS_PROXY"))
_PASSED_PREFIXES = (
    *("LC_", "XDG_", "CUDA_", "NVIDIA_", "NCCL_", "VLLM_", "HF_", "OMP_", "KMP_", "MKL_"),
    *("OPENBLAS_", "TORCH", "TRITON_", "SSL_CERT_", "GLOO_"),
)
# Would silently override the KV size that is asked for on the command line.
_DROPPED = frozenset(("VLLM_CPU_KVCACHE_SPACE", "VLLM_API_KEY", "VLLM_PORT"))


def base_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of the daemon's environment that engines may see."""
    source = os.environ if source is None else source
    return {
        name: value
        for name, value in source.items()
        if (name.upper() in _PASSED_NAMES or name.startswith(_PASSED_PREFIXES))
        and name not in _DROPPED
        and "TOKEN" not in name
    }


def log_path(order: EngineOrder) -> Path:
    """Where the engine's output goes."""
    return order.state_dir / "logs" / f"{safe_name(order.engine_id)}.log"


def socket_path(order: EngineOrder) -> Path:
    """Unix socket of an engine: under the state folder, or in a temporary folder of its own when
    that path, or one in the folder beside it, would be longer than the kernel allows."""
    path = order.state_dir / "run" / f"{safe_name(order.engine_id)}.sock"
    if fits_socket(ipc_dir(path) / _IPC_NAME):
        return path
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"{OWN_FOLDER}{os.getuid()}-{digest}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise PermissionError(f"{folder} belongs to somebody else")
    folder.chmod(0o700)
    return folder / "engine.sock"


def make_ipc_dir(order: EngineOrder) -> Path | None:
    """Private folder for the sockets between the engine's own processes.

    vLLM puts them into the temporary folder of the machine and leaves them there. Here they go
    with the engine (`identity.forget`). None where even a temporary folder has too long a path.
    """
    folder = ipc_dir(socket_path(order))
    if not fits_socket(folder / _IPC_NAME):
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def install_worker_extension(state_dir: Path) -> Path:
    """Put the worker extension, alone, into a folder for PYTHONPATH.

    maestroctl's own package folder must not be importable in an engine, so the file is copied.

    Returns:
        The folder.
    """
    source = Path(vllm_cpu_worker.__file__)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    folder = state_dir / "extension" / digest
    target = folder / f"{EXTENSION_MODULE}.py"
    if not target.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = folder / f".{EXTENSION_MODULE}.{os.getpid()}"
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    return folder


def spec_hash(order: EngineOrder) -> str:
    """Digest of all that an engine is started with, apart from its generation.

    A running engine whose digest differs was made from another configuration and is not adopted.
    """
    parts = {
        # Where its costs are from changes nothing about a running engine.
        "model": {k: v for k, v in asdict(order.model).items() if k != "profile"},
        "engine": asdict(order.engine),
        "devices": order.devices,
        "model_dir": str(order.model_dir),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]
