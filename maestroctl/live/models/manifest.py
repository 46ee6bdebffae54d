"""Hash manifest of a folder that we made: is every file still what was written?

Hashing hundreds of megabytes at every start would cost a second, so the manifest also keeps the
size and change time of each file; a file is hashed again only when those differ.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MANIFEST_NAME = "maestroctl-manifest.json"
FORMAT = 1


def write_manifest(folder: Path, origin: dict[str, str]) -> None:
    """Write the manifest of a finished folder.

    Args:
        folder: folder whose files are listed.
        origin: where the files come from, kept for the reader.
    """
    files = {
        str(path.relative_to(folder)): {**_stamp(path), "sha256": hash_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_NAME
    }
    text = json.dumps({"format": FORMAT, "origin": origin, "files": files}, indent=1)
    (folder / MANIFEST_NAME).write_text(text)


def find_damage(folder: Path) -> str | None:
    """What is wrong with a folder, or None when every file is as it was written."""
    manifest = _load(folder)
    if manifest is None:
        return "it has no manifest"
    for name, wanted in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != wanted["size"]:
            return f"{name} has another size"
        if _stamp(path) == {"size": wanted["size"], "mtime_ns": wanted["mtime_ns"]}:
            continue
        if hash_file(path) != wanted["sha256"]:
            return f"{name} has other contents"
    return None


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal text."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text())
    except (OSError, ValueError):
        return None
    ok = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    return manifest if ok and manifest.get("files") else None


def _stamp(path: Path) -> dict[str, int]:
    stat = path.stat()
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
