"""The product itself, as a user runs it: ``maestroctl serve`` with a node daemon and stub engines.

What is measured is the two processes that a request passes, the coordinator and the node daemon;
the engines behind them are not counted.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from maestroctl.testing.bench.http_client import Target
from maestroctl.testing.bench.processes import (
    BenchError,
    free_port,
    listens,
    module_argv,
    running,
)
from maestroctl.testing.bench.stub_fleet import stub_fleet_toml
from maestroctl.testing.proc import cpu_seconds, num_descriptors, rss_bytes

CHAT_PATH = "/v1/chat/completions"
_DAEMON_MODULE = "maestroctl.live.node"
_FIRST_ANSWER_S = 120.0
"""The first answer of a model waits for its engine to start."""


@dataclass(frozen=True, slots=True)
class Product:
    """The product while it runs.

    Attributes:
        target: the gateway.
        coordinator, daemon: process ids of the two hops.
        engines: where the stub of each model listens, by model.
        engine_pids: processes of the stubs.
    """

    target: Target
    coordinator: int
    daemon: int
    engines: Mapping[str, Target]
    engine_pids: tuple[int, ...]

    @property
    def hops(self) -> tuple[int, int]:
        """Both hops."""
        return (self.coordinator, self.daemon)

    def rss_bytes(self) -> int:
        """Resident memory of both hops together."""
        return sum(rss_bytes(pid) for pid in self.hops)

    def cpu_seconds(self) -> float:
        """Processor time of both hops so far."""
        return cpu_seconds(self.hops)

    def num_descriptors(self) -> int:
        """Open descriptors of both hops together."""
        return sum(num_descriptors(pid) for pid in self.hops)

    async def set_token_interval(self, seconds: float) -> None:
        """Seconds per token of every stub engine from now on."""
        for engine in self.engines.values():
            await _post(engine, "/stub/faults", {"token_interval_s": seconds})


@asynccontextmanager
async def running_product(
    folder: Path, models: Sequence[str], *, max_batch: int, kv_cache: str
) -> AsyncIterator[Product]:
    """Serve stub engines, every one of them started and answering.

    Raises:
        BenchError: it does not start, or has no room for all engines at once.
    """
    fleet = folder / "fleet.toml"
    fleet.write_text(stub_fleet_toml(folder, models, max_batch=max_batch, kv_cache=kv_cache))
    target = Target(host="127.0.0.1", port=free_port())
    listen = f"{target.host}:{target.port}"
    argv = module_argv("maestroctl", "serve", str(fleet), "--listen", listen)
    env = {"MAESTROCTL_HOME": str(folder / "home")}
    async with running(argv, folder / "serve.log", lambda: listens(target), env=env) as program:
        for model in models:
            body = {"model": model, "messages": [{"role": "user", "content": "TOKENS 1"}]}
            await _post(target, CHAT_PATH, body)
        yield _find_parts(target, program.pid, models)


def _find_parts(target: Target, coordinator: int, models: Sequence[str]) -> Product:
    daemon, engines, pids = 0, {}, []
    for process in psutil.Process(coordinator).children(recursive=True):
        argv = process.cmdline()
        if _DAEMON_MODULE in argv:
            daemon = process.pid
        elif "--served-model-name" in argv:
            model = argv[argv.index("--served-model-name") + 1]
            engines[model] = Target(path=argv[argv.index("--uds") + 1])
            pids.append(process.pid)
    if not daemon:
        raise BenchError("the product runs without a node daemon")
    if missing := sorted(set(models) - set(engines)):
        raise BenchError(
            f"the engines of {', '.join(missing)} are not running beside the others: this machine"
            " has too little free memory for the benchmark, which books 2 GiB for each of"
            f" {len(models)} engines"
        )
    return Product(target, coordinator, daemon, engines, tuple(pids))


async def _post(target: Target, path: str, body: Mapping[str, Any]) -> None:
    """POST once; anything but 200 is an error."""
    connector = aiohttp.UnixConnector(target.path) if target.path is not None else None
    host = "engine" if target.path is not None else f"{target.host}:{target.port}"
    timeout = aiohttp.ClientTimeout(total=_FIRST_ANSWER_S)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.post(f"http://{host}{path}", data=json.dumps(body)) as answer,
    ):
        text = await answer.text()
        if answer.status != 200:
            raise BenchError(f"{path} of {host} answered {answer.status}: {text[:500]}")
