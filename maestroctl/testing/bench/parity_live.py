"""The live side of `bench-parity`: ``maestroctl serve`` on the real engine, through its gateway."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import aiohttp

from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.parity_trace import ParityJob
from maestroctl.testing.bench.processes import (
    BenchError,
    Program,
    free_port,
    listens,
    module_argv,
    running,
)

_FIRST_ANSWER_S = 600.0
"""The first answer waits for the engine to start."""
_ANSWER_S = 300.0
_LEAST_ID, _MOST_ID = 100, 20_000


@dataclass(frozen=True, slots=True)
class LiveSide:
    """The product while it serves."""

    url: str
    model: str
    program: Program

    async def play(self, trace: Sequence[ParityJob], seed: int) -> list[float]:
        """Latency of each job, seconds from its arrival to the end of its last call.

        Args:
            seed: of the prompts' tokens, another one each time: no prefix is cached.

        Raises:
            BenchError: a call failed, or gave another number of tokens.
        """
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            began_s = perf_counter()
            jobs = [
                asyncio.create_task(self._job(session, began_s, job, f"{seed}-{number}"))
                for number, job in enumerate(trace)
            ]
            try:
                return await asyncio.gather(*jobs)
            finally:
                for job in jobs:
                    job.cancel()

    async def warm_up(self) -> None:
        """One short job: the engine starts."""
        timeout = aiohttp.ClientTimeout(total=_FIRST_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for number in range(3):
                await self._call(session, f"warm-up-{number}", 8, 8)

    async def _job(
        self, session: aiohttp.ClientSession, began_s: float, job: ParityJob, name: str
    ) -> float:
        due_s = began_s + job.arrival_s
        await asyncio.sleep(max(0.0, due_s - perf_counter()))
        for number, (prompt, output) in enumerate(job.calls):
            await self._call(session, name, prompt, output, number)
        return perf_counter() - due_s

    async def _call(
        self, session: aiohttp.ClientSession, job: str, prompt: int, output: int, number: int = 0
    ) -> None:
        rng = random.Random(f"{job}/{number}")
        body = {
            "model": self.model,
            "prompt": [rng.randrange(_LEAST_ID, _MOST_ID) for _ in range(prompt)],
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
        }
        headers = {"X-Maestro-Job": f"parity-{job}", "X-Maestro-Workflow": "parity"}
        async with session.post(f"{self.url}/v1/completions", json=body, headers=headers) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise BenchError(f"a call was answered {answer.status}: {text[:500]}")
        given = json.loads(text)["usage"]["completion_tokens"]
        if given != output:
            raise BenchError(f"a call gave {given} tokens where {output} were asked for")


@asynccontextmanager
async def serving(fleet: Path, home: Path, folder: Path, model: str) -> AsyncIterator[LiveSide]:
    """Serve the fleet with its engine awake.

    Args:
        home: MAESTROCTL_HOME; the engine environments and models are there.
        folder: for the log of `serve`.
    """
    target = Target(host="127.0.0.1", port=free_port())
    listen = f"{target.host}:{target.port}"
    argv = module_argv("maestroctl", "serve", str(fleet), "--listen", listen)
    env = {"MAESTROCTL_HOME": str(home)}
    async with running(argv, folder / "serve.log", lambda: listens(target), env=env) as program:
        side = LiveSide(f"http://{listen}", model, program)
        await side.warm_up()
        yield side
