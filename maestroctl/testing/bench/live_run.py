"""One policy through ``maestroctl serve``: three engines of which one can be awake."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import aiohttp

from maestroctl.domain.llm import ModelProfile
from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.live_trace import MODELS, Costs, LiveJob
from maestroctl.testing.bench.own_home import link_home
from maestroctl.testing.bench.processes import (
    BenchError,
    free_port,
    listens,
    module_argv,
    running,
)
from maestroctl.testing.bench.stub_fleet import write_tiny_model

MAX_BATCH = 8
_ANSWER_S = 600.0
_STUB = (*("--token-interval", "0.01", "--wake-delay", "0.6", "--max-num-batched-tokens", "2048"),)

POLICIES: dict[str, dict[str, str | float]] = {
    "fcfs": {"ordering": "fcfs", "group_wait_s": 0.0},
    "edf": {"ordering": "edf", "group_wait_s": 0.0},
    "workflow_srtf": {"ordering": "workflow_srtf"},
    "workflow_slo": {"ordering": "workflow_slo"},
}
"""Name -> ``[policy]``: today's practice (swap on demand), the same by deadline, and ours (a model
goes on for as long as the default has it)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served.

    Attributes:
        folder: takes fleet files, logs and the homes of runs.
        installed: home whose engines and models every run is served with.
        stub: stub engines in place of the real one.
        kv_bytes: KV cache of each engine. memory_bytes: of the node, so that one can be awake.
    """

    folder: Path
    installed: Path
    source: str
    engine: str
    stub: bool
    kv_bytes: int
    memory_bytes: int


def size(profile: ModelProfile) -> tuple[int, int]:
    """KV bytes of each engine and memory of the node, so that one model can be awake and no two.

    What an engine takes when it wakes is made larger than what stopping a sleeping one would give
    back (its context) and a start needs for a moment; else two could be awake while the third is
    stopped, and the baseline would pay for cold starts that nobody wants.
    """
    kv_bytes = round(1.2 * (profile.context_bytes + profile.start_peak_bytes)) >> 24 << 24
    awake = profile.weights_bytes + profile.peak_bytes + kv_bytes
    extra = awake + profile.start_peak_bytes + awake // 20
    return kv_bytes, len(MODELS) * profile.context_bytes + extra


def fleet_toml(setup: Setup, policy: str) -> str:
    """The fleet file of a run."""
    source, kind = setup.source, 'kind = "vllm-cpu"'
    if setup.stub:
        source = f"path:{write_tiny_model(setup.folder / 'tiny-model')}"
        kind = (
            f'kind = "vllm-cpu"\npython = "{sys.executable}"\nversion = "0.32.0"\n'
            'entrypoint = "maestroctl.testing.stub_engine"\n'
            f"args = {json.dumps(_STUB)}\n"
        )
    lines = ["[predictor]\nrefit_after_stages = 0\n[policy]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in POLICIES[policy].items()]
    lines += [f'[[node]]\nname = "local"\nmemory = {setup.memory_bytes}']
    lines += [f"[engine.{setup.engine}]\n{kind}"]
    for model in MODELS:
        lines += [
            f'[[model]]\nname = "{model}"\nsource = "{source}"\nengine = "{setup.engine}"',
            f"max_model_len = 512\nmax_batch = {MAX_BATCH}\nkv_cache = {setup.kv_bytes}",
        ]
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class Served:
    """The product while it serves one policy."""

    url: str
    session: aiohttp.ClientSession

    async def call(self, model: str, prompt: int, output: int, name: str, **headers: str) -> float:
        """Seconds of one call with forced lengths.

        Raises:
            BenchError: it failed, or gave another number of tokens.
        """
        rng = random.Random(name)
        body = {
            "model": model,
            "prompt": " ".join(rng.choice(_WORDS) for _ in range(prompt)),
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
        }
        began_s = perf_counter()
        async with self.session.post(
            f"{self.url}/v1/completions", json=body, headers=headers
        ) as answer:
            text = await answer.text()
        if answer.status != 200:
            raise BenchError(f"a call of {name} was answered {answer.status}: {text[:500]}")
        return perf_counter() - began_s

    async def warm_up(self) -> None:
        """Every engine has been started; none but the last is awake."""
        for model in MODELS:
            await self.call(model, 8, 2, f"warm-up-{model}")

    async def measure(self) -> Costs:
        """Costs of the engine that is awake, and of waking another one."""
        awake, other = MODELS[-1], MODELS[0]
        short = min([await self.call(awake, 8, 4, f"m-{n}") for n in range(4)])
        long = min([await self.call(awake, 8, 36, f"n-{n}") for n in range(3)])
        wide = min([await self.call(awake, 256, 4, f"p-{n}") for n in range(3)])
        began_s = perf_counter()
        await asyncio.gather(*(self.call(awake, 8, 36, f"b-{n}") for n in range(MAX_BATCH)))
        batch_s = perf_counter() - began_s
        switch = [await self.call(m, 8, 4, f"s-{m}-{n}") for n in range(2) for m in (other, awake)]
        token_s = max(1e-4, (long - short) / 32)
        return Costs(
            token_s=token_s,
            batch_token_s=max(token_s, (batch_s - (short - 4 * token_s)) / 36),
            batch=MAX_BATCH,
            prompt_s=max(0.0, (wide - short) / 248),
            switch_s=max(0.0, min(switch) - short),
        )

    async def play(self, jobs: Sequence[LiveJob], deadlines: dict[str, float]) -> dict[str, float]:
        """Latency of each job, seconds from its arrival to the end of its last call."""
        began_s = perf_counter()

        async def one(job: LiveJob) -> tuple[str, float]:
            due_s = began_s + job.arrival_s
            await asyncio.sleep(max(0.0, due_s - perf_counter()))
            for number, (prompt, output) in enumerate(job.calls):
                left_s = max(0.001, due_s + deadlines[job.name] - perf_counter())
                headers = {
                    "X-Maestro-Job": f"{job.name}-{began_s:.3f}",
                    "X-Maestro-Workflow": job.app,
                    "X-Maestro-Role": "agent",
                    "X-Maestro-Class": job.service_class.value,
                    "X-Maestro-Deadline": f"{left_s:.3f}",
                }
                await self.call(job.model, prompt, output, f"{job.name}/{number}", **headers)
            return job.name, perf_counter() - due_s

        tasks = [asyncio.create_task(one(job)) for job in jobs]
        try:
            return dict(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()


_WORDS = ("the", "fox", "sees", "a", "red", "house", "and", "it", "runs", "on", "to", "sea")


@asynccontextmanager
async def serving(setup: Setup, policy: str, run: str) -> AsyncIterator[Served]:
    """Serve the policy with all engines started and nothing learned.

    Args:
        run: names its fleet file, its log and its home, which takes the state. A home that an
            interrupted run has left is dropped: it knows of the jobs that are to come.

    Raises:
        BenchError: it does not start or answer.
    """
    fleet = setup.folder / f"{run}.toml"
    fleet.write_text(fleet_toml(setup, policy))
    target = Target(host="127.0.0.1", port=free_port())
    listen = f"{target.host}:{target.port}"
    argv = module_argv("maestroctl", "serve", str(fleet), "--listen", listen)
    home = setup.folder / "homes" / run
    shutil.rmtree(home, ignore_errors=True)
    env = {"MAESTROCTL_HOME": str(link_home(home, setup.installed))}
    log = setup.folder / f"{run}.log"
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        running(argv, log, lambda: listens(target), env=env),
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
    ):
        served = Served(f"http://{listen}", session)
        await served.warm_up()
        yield served
