"""Requests to one engine, with the time of every token.

Prompts are random token ids, so their length is exact and no prefix is cached; the output length
is fixed. Streamed with running usage, since a chunk may carry several tokens.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import aiohttp

from maestroctl.errors import EngineError
from maestroctl.live.engine.base import EngineAddress

_LIMIT_S = 600.0
_LEAST_ID, _MOST_ID = 100, 20_000
"""Ordinary tokens of any vocabulary in use."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One request.

    Attributes:
        sent_s: when it was sent; `perf_counter` like all times here.
        tokens: (time, output tokens by then), rising.
    """

    prompt_tokens: int
    output_tokens: int
    sent_s: float
    tokens: tuple[tuple[float, int], ...]

    @property
    def first_s(self) -> float:
        """When its first token came."""
        return self.tokens[0][0]

    @property
    def end_s(self) -> float:
        """When its last token came."""
        return self.tokens[-1][0]

    @property
    def stage_s(self) -> float:
        """Seconds from sending to the last token."""
        return self.end_s - self.sent_s

    def count_at(self, time_s: float) -> int:
        """Output tokens by `time_s`."""
        count = 0
        for at_s, tokens in self.tokens:
            if at_s > time_s:
                break
            count = tokens
        return count


class LoadClient:
    """Sends requests to one engine. Close it."""

    def __init__(self, address: EngineAddress, seed: int, vocabulary: int = _MOST_ID) -> None:
        self._address = address
        self._random = random.Random(seed)
        self._most_id = max(_LEAST_ID + 1, min(_MOST_ID, vocabulary - 1))
        connector: aiohttp.BaseConnector
        if address.socket_path is not None:
            connector = aiohttp.UnixConnector(path=address.socket_path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
        headers = {"Authorization": f"Bearer {address.api_key}"} if address.api_key else {}
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)

    async def close(self) -> None:
        """Close its connections."""
        await self._session.close()

    def numbers(self, count: int) -> list[int]:
        """Random numbers from 0 to 999, the same for the same seed and history."""
        return [self._random.randrange(1000) for _ in range(count)]

    async def together(self, requests: Sequence[tuple[int, int]]) -> list[Trace]:
        """Send (prompt tokens, output tokens) requests at once; their traces when all are done.

        Raises:
            EngineError: one of them failed, or got another number of tokens.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.send(*request)) for request in requests]
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from exc
        return [task.result() for task in tasks]

    async def send(self, prompt_tokens: int, output_tokens: int) -> Trace:
        """One request."""
        ids = [self._random.randrange(_LEAST_ID, self._most_id) for _ in range(prompt_tokens)]
        body = {
            "model": self._address.model,
            "prompt": ids,
            "max_tokens": output_tokens,
            "min_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        data = json.dumps(body).encode()
        sent_s = perf_counter()
        try:
            tokens = await self._stream(data)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
            raise EngineError(f"a request of the profile failed: {exc!r}") from exc
        if not tokens or tokens[-1][1] != output_tokens:
            got = tokens[-1][1] if tokens else 0
            raise EngineError(f"the engine gave {got} tokens where {output_tokens} were asked for")
        return Trace(prompt_tokens, output_tokens, sent_s, tuple(tokens))

    async def _stream(self, data: bytes) -> list[tuple[float, int]]:
        tokens: list[tuple[float, int]] = []
        url = f"{self._address.base_url}/v1/completions"
        headers = {"Content-Type": "application/json"}
        async with self._session.post(url, data=data, headers=headers) as response:
            if response.status != 200:
                text = (await response.text())[:300].strip()
                raise EngineError(f"the engine answered {response.status}: {text}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                at_s = perf_counter()
                chunk = json.loads(line[6:])
                if not chunk.get("choices"):
                    continue
                usage = chunk.get("usage") or {}
                count = usage.get("completion_tokens", tokens[-1][1] + 1 if tokens else 1)
                if not tokens or count > tokens[-1][1]:
                    tokens.append((at_s, count))
        return tokens
