"""Writes a file as a whole or not at all, whatever ends the process meanwhile."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_MODE = 0o644


def write_whole(path: Path, content: bytes | str) -> None:
    """Put `content` (text as UTF-8) at `path`; its folder is made, what was there is replaced.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    raw = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        os.chmod(name, _MODE)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
