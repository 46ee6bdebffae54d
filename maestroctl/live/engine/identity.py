"""The durable identity of an engine: a small file that outlives the daemon.

Written *before* the process is started (then without a process id) and again after, so that no
moment exists in which an engine runs and nothing on disk says so. Found again by `orphans`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from maestroctl.live.engine import procfs

IDENTITY_SUFFIX = ".engine.json"
OWN_FOLDER = "maestroctl-"
"""How the name of a temporary folder begins that one engine alone has for its sockets."""


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Who an engine is, as far as a later daemon needs to know.

    Attributes:
        token: random text that each of its processes carries in the environment.
        engine: name of the engine on its node; unique there.
        model: name of the model that it serves.
        generation: how often the engine had been started, this start included.
        spec_hash: digest of what it was started with; another digest means a changed config.
        socket_path: its Unix socket, or empty.
        base_url: its URL, or empty when it listens on a socket.
        log_path: its log file.
        kv_bytes: KV cache size it was started with.
        devices: where it runs, in tensor-parallel order.
        pid: its first process; 0 between the intent to start and the start.
        start_ticks: start time of that process, clock ticks since boot.
        boot_id: the boot that `start_ticks` counts from.
    """

    token: str
    engine: str
    model: str
    generation: int
    spec_hash: str
    socket_path: str = ""
    base_url: str = ""
    log_path: str = ""
    kv_bytes: int = 0
    devices: tuple[str, ...] = ()
    pid: int = 0
    start_ticks: int = 0
    boot_id: str = ""


def make_token() -> str:
    """A token that no other engine has."""
    return secrets.token_hex(16)


def identity_path(state_dir: Path, engine: str) -> Path:
    """Where the identity of an engine is kept.

    Args:
        state_dir: the node's state folder.
        engine: name of the engine; may hold any character.
    """
    return state_dir / "engines" / f"{safe_name(engine)}{IDENTITY_SUFFIX}"


def safe_name(name: str) -> str:
    """A file name for any model or engine name; different names give different files."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)
    if plain == name and not name.startswith("."):
        return name
    # Slashes, spaces or other alphabets were replaced: a digest keeps "a/b" and "a_b" apart.
    return f"{plain[:40].lstrip('.')}-{hashlib.sha256(name.encode()).hexdigest()[:10]}"


def save_identity(state_dir: Path, identity: EngineIdentity) -> Path:
    """Write the file so that a reader sees the old or the new text, never half of one."""
    path = identity_path(state_dir, identity.engine)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".identity-")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(identity), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    return path


def load_identity(path: Path) -> EngineIdentity | None:
    """Read one identity file; None when it is gone or holds something else."""
    try:
        data = json.loads(path.read_text())
        return EngineIdentity(**{**data, "devices": tuple(data.get("devices", ()))})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def load_identities(state_dir: Path) -> list[EngineIdentity]:
    """Every identity kept in a node's state folder, in the order of their names."""
    folder = state_dir / "engines"
    found = [load_identity(path) for path in sorted(folder.glob(f"*{IDENTITY_SUFFIX}"))]
    return [identity for identity in found if identity is not None]


def ipc_dir(socket: Path) -> Path:
    """Folder beside an engine's socket for those between its own processes, which it leaves.

    Its name is short: theirs are long, and a path of a socket may not be.
    """
    return socket.parent / hashlib.sha256(os.fsencode(socket.name)).hexdigest()[:8]


def forget(state_dir: Path, identity: EngineIdentity) -> None:
    """Remove the files of an engine that is gone: its identity and every socket.

    Nothing is removed when the identity file already speaks of a later start of it: the later
    one has the same socket path.
    """
    path = identity_path(state_dir, identity.engine)
    current = load_identity(path)
    if current is not None and current.token != identity.token:
        return
    if identity.socket_path:
        socket = Path(identity.socket_path)
        socket.unlink(missing_ok=True)
        shutil.rmtree(ipc_dir(socket), ignore_errors=True)
        if socket.parent.name.startswith(OWN_FOLDER):
            with contextlib.suppress(OSError):
                socket.parent.rmdir()
    path.unlink(missing_ok=True)


def is_leader_alive(identity: EngineIdentity) -> bool:
    """Whether the first process of an identity still runs and is not a later owner of its id."""
    if identity.pid <= 0 or identity.boot_id != procfs.read_boot_id():
        return False
    stat = procfs.read_stat(identity.pid)
    return (
        stat is not None
        and stat.is_running
        and stat.start_ticks == identity.start_ticks
        and procfs.carries_token(identity.pid, identity.token)
    )
