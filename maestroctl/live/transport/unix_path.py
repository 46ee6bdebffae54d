"""How long the path of a Unix socket may be."""

from __future__ import annotations

import os
from pathlib import Path

MAX_SOCKET_PATH = 107
"""Bytes, set by the kernel's `sockaddr_un`."""


def fits_socket(path: Path) -> bool:
    """Whether a socket can be made at an absolute path."""
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH
