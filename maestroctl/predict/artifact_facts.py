"""What an artifact says of itself, for people. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """Of the manifest; None = it does not say.

    Attributes:
        digest: SHA-256 of the manifest, which covers every byte of the artifact.
        stages: it was trained on so many.
        apps: names of the applications they came from.
    """

    path: Path | None
    digest: str | None = None
    trained_at: str | None = None
    stages: int | None = None
    apps: tuple[str, ...] = ()


def partial_path(path: Path) -> Path:
    """Where this process writes an artifact before it is moved to `path`."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def sweep_partials(path: Path) -> None:
    """Remove what processes that are gone left of artifacts they never moved to `path`."""
    for partial in path.parent.glob(f"{path.name}.*.part"):
        number = partial.name.split(".")[-2]
        if not _runs(number):
            with contextlib.suppress(OSError):
                partial.unlink()


def _runs(number: str) -> bool:
    """Whether a process has this id and is not merely waiting to be reaped."""
    try:
        stat = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    # The command name is in brackets and may hold anything; the state follows the last one.
    return stat[stat.rindex(")") + 2] not in "ZX"


def read_facts(path: Path) -> ArtifactFacts:
    """Facts of the artifact at `path`; nothing but the path when it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read("manifest.json")
        about = json.loads(text)["about"]
        stages, trained_at = about.get("stages"), about.get("trained_at")
        return ArtifactFacts(
            path,
            hashlib.sha256(text).hexdigest(),
            None if trained_at is None else str(trained_at),
            None if stages is None else int(stages),
            tuple(sorted(about.get("apps") or ())),
        )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return ArtifactFacts(path)
