"""The whole product in a test: a coordinator with a node daemon and stub engines.

The daemon and the engines are real processes, the coordinator runs in the test's own loop
(`running_coordinator`) or as a process of its own (`ServeProcess`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from maestroctl.cli.wiring import Coordinator, CoordinatorOptions
from maestroctl.config.fleet import parse_fleet
from maestroctl.domain.fleet import FleetSpec

GIB = 1 << 30


def write_tiny_model(folder: Path) -> Path:
    """A model folder that has the right shape and next to no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_size": 128,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "vocab_size": 1000,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"\0" * 4096)
    return folder


def stub_fleet_toml(
    tmp_path: Path,
    *,
    models: Mapping[str, tuple[str, ...]] | None = None,
    memory: str = "64 GiB",
    flags: tuple[str, ...] = (),
    extra: str = "",
    coordinator: str = "",
    model_extra: str = "",
    predictor: str = "enabled = false",
) -> str:
    """A fleet file whose engines are stubs.

    Args:
        models: stub flags of each model; None = one model ``alpha``.
        flags: for every engine.
        extra: appended; coordinator, model_extra, predictor: lines for those tables; few
            tests need learned models, and their process takes seconds to start.
    """
    folder = write_tiny_model(tmp_path / "tiny")
    lines = [
        "[coordinator]",
        'listen = "127.0.0.1:0"',
        f'state = "sqlite:///{tmp_path}/state.db"',
        coordinator,
        "[predictor]",
        predictor,
        "[[node]]",
        'name = "local"',
        f'memory = "{memory}"',
        "linger_s = 8",
    ]
    for name, own in (models or {"alpha": ()}).items():
        engine = f"stub-{name.replace('/', '-')}"
        lines += [
            f"[engine.{engine}]",
            'kind = "vllm-cpu"',
            f'python = "{sys.executable}"',
            'entrypoint = "maestroctl.testing.stub_engine"',
            'version = "0.32.0"',
            "start_timeout_s = 20",
            "stop_grace_s = 2",
            f"args = {json.dumps([*flags, *own])}",
            "[[model]]",
            f'name = "{name}"',
            f'source = "path:{folder}"',
            f'engine = "{engine}"',
            "max_model_len = 2048",
            'kv_cache = "64 MiB"',
            model_extra,
        ]
    return "\n".join([*lines, extra]) + "\n"


def stub_fleet(tmp_path: Path, **options: Any) -> FleetSpec:
    """The fleet of `stub_fleet_toml`."""
    return parse_fleet(stub_fleet_toml(tmp_path, **options)).spec


@contextlib.asynccontextmanager
async def running_coordinator(
    fleet: FleetSpec, tmp_path: Path, **changes: Any
) -> AsyncIterator[Coordinator]:
    """A coordinator in this loop; nothing of it is left afterwards."""
    notes: list[str] = []
    options = CoordinatorOptions(home=tmp_path / "home", notify=notes.append)
    coordinator = Coordinator(replace(fleet, **changes), options)
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()
    if coordinator.failed.done():
        coordinator.failed.result()
    assert engines_of(tmp_path) == []


async def until(
    condition: Callable[[], Any] | Callable[[], Awaitable[Any]], limit_s: float = 20.0
) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {limit_s} s: {condition}"
        await asyncio.sleep(0.01)


def processes_under(path: Path) -> list[psutil.Process]:
    """Live processes whose command line or environment names the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if str(path) in " ".join(process.cmdline()):
                found.append(process)
    return found


def engines_of(path: Path) -> list[psutil.Process]:
    """Live engines and daemons of a test."""
    return processes_under(path)


def free_port() -> int:
    """A TCP port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class ServeProcess:
    """``maestroctl serve`` as a process."""

    fleet_file: Path
    home: Path
    port: int
    process: asyncio.subprocess.Process | None = None
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log = self.home.parent / "serve.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it and wait until it can serve."""
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "maestroctl", "serve", str(self.fleet_file)),
                *("--listen", f"127.0.0.1:{self.port}"),
                env={**os.environ, "MAESTROCTL_HOME": str(self.home)},
                stdout=log,
                stderr=log,
            )
        await until(self._is_ready)

    async def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.returncode is None, self.log.read_text()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(self.url + "/ready") as response,
            ):
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def send(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def wait(self, limit_s: float = 30.0) -> int:
        """Its exit code."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), limit_s)

    async def stop(self) -> None:
        """Make sure that it is gone."""
        if self.process is not None and self.process.returncode is None:
            self.send(signal.SIGTERM)
            try:
                await self.wait()
            except TimeoutError:
                self.send(signal.SIGKILL)
                await self.wait()


def chat(text: str, model: str = "alpha", **fields: Any) -> dict[str, Any]:
    """Body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}
