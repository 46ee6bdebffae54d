"""`ControlClient` over a real socket: what is asked twice, and what every fault becomes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from maestroctl.errors import EngineError
from maestroctl.live.engine.base import EngineAddress
from maestroctl.live.engine.control import ControlClient


@dataclass
class Peer:
    """Answers with what `answers` holds, in order; None closes the connection instead."""

    address: EngineAddress
    answers: list[bytes | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readline()).decode():
            length = 0
            while (line := (await reader.readline()).decode().strip().lower()) != "":
                if line.startswith("content-length:"):
                    length = int(line.partition(":")[2])
            body = (await reader.readexactly(length)).decode()
            self.asked.append(f"{head.split()[0]} {head.split()[1]} {body}".strip())
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        writer.close()


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    made = Peer(EngineAddress("http://engine", "m", socket_path=str(tmp_path / "s")))
    server = await asyncio.start_unix_server(made.serve, made.address.socket_path)
    yield made
    server.close()


async def test_reading_is_asked_again_when_a_kept_connection_breaks(peer: Peer) -> None:
    peer.answers = [b"{}", None, b'{"is_paused": true}']
    client = ControlClient(peer.address, "e")
    await client.get_json("/is_paused")
    assert await client.get_json("/is_paused") == {"is_paused": True}
    assert peer.asked == ["GET /is_paused"] * 3
    await client.close()


async def test_a_change_is_never_asked_twice(peer: Peer) -> None:
    peer.answers = [b"", None]
    client = ControlClient(peer.address, "e")
    assert await client.post("/pause?mode=keep", {"x": 1}) == {}
    with pytest.raises(EngineError, match=r"engine 'e': POST /resume: the peer closed"):
        await client.post("/resume")
    assert peer.asked == ['POST /pause?mode=keep {"x": 1}', "POST /resume"]
    await client.close()


async def test_an_answer_that_is_no_object_is_an_error(peer: Peer) -> None:
    peer.answers = [b"[1]"]
    client = ControlClient(peer.address, "e")
    with pytest.raises(EngineError, match="not an object"):
        await client.get_json("/x")
    await client.close()


async def test_nobody_listening_is_an_engine_error(tmp_path: Path) -> None:
    client = ControlClient(EngineAddress("http://engine", "m", str(tmp_path / "none")), "e")
    assert not await client.is_reachable("/health")
    with pytest.raises(EngineError, match="GET /health"):
        await client.get_text("/health")
    await client.close()
