"""The frames between a host and the predictor process: four length bytes, then JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

MAX_FRAME_BYTES = 2**20
"""A stage input is a few kilobytes; anything larger is a broken peer."""


class BrokenFrame(ConnectionError):
    """The peer sent something that is no frame."""


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next frame.

    Raises:
        asyncio.IncompleteReadError: the peer closed.
        BrokenFrame: too long, or not a JSON object.
    """
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a frame of {size} bytes")
    try:
        value = json.loads(await reader.readexactly(size))
    except ValueError as exc:
        raise BrokenFrame(f"not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise BrokenFrame("not a JSON object")
    return value


def pack_frame(value: dict[str, Any]) -> bytes:
    """A frame's bytes. NaN never occurs in one."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return len(body).to_bytes(4, "big") + body
