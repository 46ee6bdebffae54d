"""Measured sections of the report, kept from run to run as long as their inputs are the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Kept:
    """Measured sections in a folder; those made from something else count as not there."""

    folder: Path
    digest: str

    def holds(self, name: str) -> bool:
        """Whether the section was measured from the same inputs."""
        path = self.folder / f"{name}.json"
        return path.is_file() and json.loads(path.read_text()).get("digest") == self.digest

    def get(self, name: str, measure: Callable[[], Any], say: Callable[[str], None]) -> Any:
        """The section, measured now unless it was before."""
        path = self.folder / f"{name}.json"
        if not self.holds(name):
            say(f"measuring {name}")
            document = {"digest": self.digest, "figures": measure()}
            part = path.with_suffix(".part")
            part.write_text(json.dumps(document, indent=1))
            part.replace(path)
        # Read back even when just measured: one form of the figures, whether kept or new.
        return json.loads(path.read_text())["figures"]


def inputs_digest(folders: Iterable[Path], settings: object) -> str:
    """Digest of every file of the folders, code or data, and of the settings' `repr`."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for root in folders:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
