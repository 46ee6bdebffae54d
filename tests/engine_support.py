# ruff: noqa: ASYNC110 (tests poll real processes)
"""Making stub engines for tests of the engine layer."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from maestroctl.domain.ids import EngineId, ModelName
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelSpec
from maestroctl.live.engine.base import Engine, EngineAddress, EngineOrder
from maestroctl.live.engine.factory import make_engine
from maestroctl.live.engine.identity import load_identities
from maestroctl.live.engine.launch import LaunchSpec
from maestroctl.live.engine.procfs import find_members, signal_process

STUB_MODULE = "maestroctl.testing.stub_engine"
MIB = 1 << 20


def stub_argv(socket: Path, *flags: str) -> tuple[str, ...]:
    """Command line of a stub on a Unix socket."""
    return (sys.executable, "-m", STUB_MODULE, "--uds", str(socket), "--model", "stub", *flags)


def stub_launch(folder: Path, *flags: str, engine: str = "stub", **changes: Any) -> LaunchSpec:
    """A stub as a bare process, without an adapter."""
    socket = folder / f"{engine}.sock"
    values: dict[str, Any] = {
        "engine": engine,
        "model": "stub",
        "generation": 1,
        "argv": stub_argv(socket, *flags),
        "env": {"PATH": "/usr/bin:/bin"},
        "state_dir": folder,
        "log_path": folder / "logs" / f"{engine}.log",
        "socket_path": socket,
    }
    return LaunchSpec(**(values | changes))


def stub_order(
    folder: Path,
    *flags: str,
    engine_id: str = "stub@here",
    kind: EngineKind = EngineKind.VLLM_CPU,
    start_timeout_s: float = 20.0,
    memory_return_s: float = 5.0,
    version: str | None = None,
    **model: Any,
) -> EngineOrder:
    """An order for a stub in vLLM's place."""
    return EngineOrder(
        engine_id=EngineId(engine_id),
        generation=1,
        model=ModelSpec(ModelName("stub"), **model),
        engine=EngineSpec(
            "default",
            kind,
            entrypoint=STUB_MODULE,
            version=version,
            args=flags,
            start_timeout_s=start_timeout_s,
            stop_grace_s=2.0,
        ),
        state_dir=folder,
        memory_return_s=memory_return_s,
    )


async def start_stub(folder: Path, *flags: str, kv_bytes: int = 64 * MIB, **order: Any) -> Engine:
    """A stub engine that is ready."""
    engine = await make_engine(stub_order(folder, *flags, **order))
    await engine.start(kv_bytes)
    return engine


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for a condition; fail the test when it does not come true."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


@dataclass
class Reply:
    """What a streamed chat gave so far."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    num_chunks: int = 0
    ended_with_done: bool = False
    first_token: asyncio.Event = field(default_factory=asyncio.Event)


class EngineClient:
    """An OpenAI client over an engine's address, for tests."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(path=address.socket_path)
            if address.socket_path
            else aiohttp.TCPConnector()
        )
        self._session = aiohttp.ClientSession(connector=connector)

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        async with self._session.get(self._address.base_url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, payload: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of a POST."""
        async with self._session.post(self._address.base_url + path, json=payload) as response:
            return response.status, json.loads(await response.text() or "{}")

    async def chat(self, prompt: str, max_tokens: int = 24) -> dict[str, Any]:
        """A whole greedy chat answer."""
        status, body = await self.post(
            "/v1/chat/completions", self._payload(prompt, max_tokens, stream=False)
        )
        assert status == 200, body
        return body

    async def text(self, prompt: str, max_tokens: int = 24) -> str:
        """Text of a greedy chat answer."""
        return str((await self.chat(prompt, max_tokens))["choices"][0]["message"]["content"])

    async def stream(
        self,
        prompt: str,
        max_tokens: int = 24,
        *,
        reply: Reply | None = None,
        request_id: str | None = None,
    ) -> Reply:
        """A streamed greedy chat; `reply` fills while it runs."""
        reply = reply or Reply()
        headers = {"X-Request-Id": request_id} if request_id else {}
        async with self._session.post(
            self._address.base_url + "/v1/chat/completions",
            json=self._payload(prompt, max_tokens, stream=True),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=120),
        ) as response:
            assert response.status == 200, await response.text()
            async for event in _events(response):
                if event == "[DONE]":
                    reply.ended_with_done = True
                    break
                _take(json.loads(event), reply)
        return reply

    def _payload(self, prompt: str, max_tokens: int, *, stream: bool) -> dict[str, Any]:
        payload: dict[str, Any] = {
            "model": self._address.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            payload["stream_options"] = {"include_usage": True}
        return payload


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    async for line in response.content:
        if line.startswith(b"data: "):
            yield line[6:].decode().strip()


def _take(chunk: dict[str, Any], reply: Reply) -> None:
    reply.num_chunks += 1
    if chunk.get("usage"):
        reply.usage = chunk["usage"]
    for choice in chunk.get("choices", []):
        reply.text += choice["delta"].get("content") or ""
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        if reply.text:
            reply.first_token.set()


def kill_leftovers(folder: Path) -> None:
    """End what a failed test left running, so that it does not disturb the next one."""
    for identity in load_identities(folder):
        for member in find_members(identity.token):
            signal_process(member, signal.SIGKILL)
