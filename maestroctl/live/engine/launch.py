"""How an engine's process is started: in a session of its own, known on disk before it runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from maestroctl.errors import EngineStartFailed
from maestroctl.live.engine import identity as identities
from maestroctl.live.engine import procfs
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.logs import START_MARK, LogLimits
from maestroctl.live.transport.unix_path import MAX_SOCKET_PATH, fits_socket


@dataclass(frozen=True)
class LaunchSpec:
    """How to start one engine process.

    Attributes:
        engine: name of the engine on its node; unique there.
        model: model that it serves.
        generation: how often it has been started, this start included.
        argv: program and arguments.
        env: the whole environment, but for the token, which is added.
        state_dir: the node's state folder.
        log_path: where its output goes.
        spec_hash: digest of the configuration that it comes from.
        socket_path: Unix socket that it will make, or None.
        base_url: its URL when it has no socket.
        kv_bytes: KV cache size that it is started with.
        devices: where it runs, in tensor-parallel order.
        cwd: working folder; the state folder when None.
        log_limits: bounds of its log files.
    """

    engine: str
    model: str
    generation: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    state_dir: Path
    log_path: Path
    spec_hash: str = ""
    socket_path: Path | None = None
    base_url: str = ""
    kv_bytes: int = 0
    devices: tuple[str, ...] = ()
    cwd: Path | None = None
    log_limits: LogLimits = LogLimits()


def start_process(spec: LaunchSpec) -> tuple[EngineIdentity, subprocess.Popen[bytes]]:
    """Start the first process of an engine.

    Raises:
        EngineStartFailed: the program cannot be executed.
    """
    spec.log_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if spec.socket_path is not None:
        _prepare_socket_path(spec.socket_path)
    identity = EngineIdentity(
        token=identities.make_token(),
        engine=spec.engine,
        model=spec.model,
        generation=spec.generation,
        spec_hash=spec.spec_hash,
        socket_path=str(spec.socket_path or ""),
        base_url=spec.base_url,
        log_path=str(spec.log_path),
        kv_bytes=spec.kv_bytes,
        devices=spec.devices,
        boot_id=procfs.read_boot_id(),
    )
    identities.save_identity(spec.state_dir, identity)
    try:
        child = _spawn(spec, identity)
    except OSError as exc:
        identities.forget(spec.state_dir, identity)
        raise EngineStartFailed(
            f"cannot start engine '{spec.engine}': {spec.argv[0]}: {exc.strerror}",
            hint="check that the program exists and may be executed; `maestroctl doctor` "
            "lists the engine environments",
        ) from exc
    stat = procfs.read_stat(child.pid)
    identity = replace(identity, pid=child.pid, start_ticks=stat.start_ticks if stat else 0)
    identities.save_identity(spec.state_dir, identity)
    return identity, child


def _prepare_socket_path(path: Path) -> None:
    """Make way for a Unix socket: a private folder, and no stale file.

    vLLM leaves its socket file behind, and the next start then fails with "Address already in
    use".

    Raises:
        EngineStartFailed: the path is longer than the kernel allows.
    """
    if not fits_socket(path):
        raise EngineStartFailed(
            f"the socket path {path} is longer than {MAX_SOCKET_PATH} bytes",
            hint="use a shorter state folder",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def _spawn(spec: LaunchSpec, identity: EngineIdentity) -> subprocess.Popen[bytes]:
    """Start the process in a session of its own, writing straight to its log."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(spec.log_path, flags, 0o600)
    try:
        os.write(log, f"{START_MARK} {spec.engine}, generation {spec.generation}\n".encode())
        return subprocess.Popen(
            spec.argv,
            env={**spec.env, procfs.TOKEN_VARIABLE: identity.token},
            cwd=spec.cwd or spec.state_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
