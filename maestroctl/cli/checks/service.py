"""What a coordinator needs of this machine: folders, keys, port, SSH; and whether one runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

from maestroctl.cli.api import CoordinatorApi, CoordinatorUnreachable
from maestroctl.cli.checks.check import Check, Level
from maestroctl.domain.fleet import CoordinatorSpec, FleetSpec
from maestroctl.domain.units import format_seconds
from maestroctl.errors import MaestroError
from maestroctl.gateway.auth import KeyRing
from maestroctl.store.location import parse_state_url

AREA = "service"
_ASK_LIMIT_S = 3.0


def check_folder(name: str, folder: Path) -> Check:
    """A private folder that can be written."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        fix = "name another one: MAESTROCTL_HOME, or `state` in [coordinator]"
        return Check(AREA, name, Level.MISSING, f"{existing} is a file, not a folder", fix)
    if not os.access(existing, os.W_OK | os.X_OK):
        fix = f"sudo chown $USER {existing}, or set MAESTROCTL_HOME"
        return Check(AREA, name, Level.MISSING, f"no permission to write to {existing}", fix)
    if existing != folder:
        return Check(AREA, name, Level.OK, f"{folder} (made on first use)")
    if folder.stat().st_mode & 0o022:
        fix = f"chmod go-w {folder}"
        return Check(AREA, name, Level.WARN, f"{folder} can be written by others", fix)
    return Check(AREA, name, Level.OK, str(folder))


def check_state(spec: CoordinatorSpec) -> Check:
    """The folder of the state database."""
    try:
        location = parse_state_url(spec.state)
    except MaestroError as exc:
        return Check(AREA, "state", Level.MISSING, exc.message, exc.hint or "")
    found = check_folder("state", location.path.parent)
    if found.level is Level.OK and location.path.exists() and not os.access(location.path, os.W_OK):
        fix = f"sudo chown $USER {location.path}"
        return Check(AREA, "state", Level.MISSING, f"no permission to write {location.path}", fix)
    return found


def check_keys(spec: CoordinatorSpec) -> Check:
    """The file with the API keys."""
    if spec.api_keys_file is None:
        return Check(AREA, "api keys", Level.OK, f"none asked for on {spec.host}")
    try:
        KeyRing.load(spec.api_keys_file)
    except MaestroError as exc:
        return Check(AREA, "api keys", Level.MISSING, str(exc), exc.hint or "")
    return Check(AREA, "api keys", Level.OK, spec.api_keys_file)


def check_ssh(fleet: FleetSpec) -> Check:
    """An SSH client; needed when a node is another machine."""
    remote = [node.name for node in fleet.nodes.values() if node.host is not None]
    path = shutil.which("ssh")
    if path is None:
        fix = "apt-get install openssh-client"
        if remote:
            found = f"no ssh on the path; {', '.join(remote)} need it"
            return Check(AREA, "ssh", Level.MISSING, found, fix)
        found = "no ssh on the path; this fleet needs none"
        return Check(AREA, "ssh", Level.WARN, found, fix)
    said = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=False)
    return Check(AREA, "ssh", Level.OK, (said.stderr or said.stdout).strip().split(",")[0])


async def check_coordinator(spec: CoordinatorSpec, url: str | None) -> list[Check]:
    """Whether a coordinator answers, and if not, whether its port is free.

    Args:
        url: where to ask; None = where the fleet file says it listens.
    """
    port = f"{spec.host}:{spec.port}"
    here = f"http://{port}" if spec.port else None
    status = await _ask(url or here)
    if isinstance(status, dict):
        found = (
            f"{url or here}: version {status.get('version')}, pid {status.get('pid')}, up"
            f" {format_seconds(float(status.get('uptime_s') or 0))}"
        )
        if status.get("not_ready"):
            return [Check(AREA, "coordinator", Level.WARN, f"{found}; {status['not_ready']}")]
        return [Check(AREA, "coordinator", Level.OK, found)]
    fix = "maestroctl serve"
    checks = [Check(AREA, "coordinator", Level.WARN, status, fix)]
    if not spec.port:
        return checks
    busy = _why_busy(spec)
    if busy is None:
        return [Check(AREA, "port", Level.OK, f"{port} is free"), *checks]
    fix = "stop what listens there, or: maestroctl serve --listen 127.0.0.1:0"
    return [Check(AREA, "port", Level.MISSING, f"{port}: {busy}", fix), *checks]


async def _ask(url: str | None) -> dict[str, Any] | str:
    """Status of a coordinator, or why there is none."""
    if url is None:
        return "none asked: the fleet listens on a free port"
    try:
        async with CoordinatorApi(url) as api:
            status: dict[str, Any] = await asyncio.wait_for(api.get("/api/status"), _ASK_LIMIT_S)
            return status
    except CoordinatorUnreachable:
        return f"none answers at {url}"
    except (MaestroError, TimeoutError) as exc:
        return f"{url}: {exc or 'no answer'}"


def _why_busy(spec: CoordinatorSpec) -> str | None:
    try:
        family = socket.AF_INET6 if ":" in spec.host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((spec.host, spec.port))
    except OSError as exc:
        return (exc.strerror or str(exc)).lower()
    return None
