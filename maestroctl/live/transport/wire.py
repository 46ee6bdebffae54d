"""The control connection: one JSON object per line, ``{"type": NAME, "body": {...}}``.

Covers framing, encoding and the size limit. Does not cover what the messages mean (see
`domain.messages`) nor how the byte stream came to be (a Unix socket, or one forwarded by SSH).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from types import UnionType
from typing import Any, Generic, TypeVar, get_args

import msgspec

from maestroctl.domain import messages
from maestroctl.errors import ProtocolMismatch

MAX_LINE_BYTES = 16 << 20
"""A snapshot of a thousand engines takes about 400 KB."""

Incoming = TypeVar("Incoming")


_ENCODER = msgspec.json.Encoder(enc_hook=dict)
"""`dict` for the read-only mappings that frozen records may hold."""


class _Envelope(msgspec.Struct):
    type: str
    body: msgspec.Raw


class ControlConnection(Generic[Incoming]):
    """Sends any message, receives those of one direction.

    Args:
        reader, writer: the byte stream.
        incoming: union of the message types that may come.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        incoming: UnionType,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._types: Mapping[str, type[Incoming]] = {t.__name__: t for t in get_args(incoming)}

    def send(self, message: object) -> None:
        """Queue one message; a broken connection shows up in `receive`."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def drain(self) -> None:
        """Wait until the peer has taken what was sent."""
        await self._writer.drain()

    async def receive(self) -> Incoming | None:
        """The next message; None when the peer closed the connection.

        Raises:
            ProtocolMismatch: the line is not a message of this direction.
        """
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError) as exc:
            if isinstance(exc, ValueError):
                raise ProtocolMismatch(f"control line over {MAX_LINE_BYTES} bytes") from exc
            return None
        if not line.endswith(b"\n"):
            return None
        return self._decode(line)

    def _decode(self, line: bytes) -> Incoming:
        try:
            envelope = msgspec.json.decode(line, type=_Envelope)
            kind = self._types[envelope.type]
            return msgspec.json.decode(envelope.body, type=kind)
        except (msgspec.MsgspecError, KeyError) as exc:
            raise ProtocolMismatch(
                f"control connection: unexpected line {line[:120]!r}",
                hint="coordinator and node daemon must run the same version of maestroctl",
            ) from exc

    async def close(self) -> None:
        """Close and wait until it is closed."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def encode(message: object) -> bytes:
    """One line for `message`, which is a dataclass of `domain.messages`."""
    body = _ENCODER.encode(message)
    return b'{"type":"' + type(message).__name__.encode() + b'","body":' + body + b"}\n"


async def open_control(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the control socket of a node daemon.

    Raises:
        OSError: nobody listens there.
    """
    return await asyncio.open_unix_connection(path, limit=MAX_LINE_BYTES)


def node_side(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ControlConnection[Any]:
    """The connection as the node daemon sees it."""
    return ControlConnection(reader, writer, messages.CoordinatorMessage)


def coordinator_side(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> ControlConnection[Any]:
    """The connection as the coordinator sees it."""
    return ControlConnection(reader, writer, messages.NodeMessage)
