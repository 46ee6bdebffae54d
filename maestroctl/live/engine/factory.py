"""Making engines: the one place that maps a kind to its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from maestroctl.domain.llm import EngineKind, EngineSpec
from maestroctl.errors import ConfigError, EngineError
from maestroctl.live import engine_envs
from maestroctl.live.engine import environment
from maestroctl.live.engine.base import Engine, EngineOrder
from maestroctl.live.engine.capabilities import (
    NEWEST_TRIED_VLLM,
    Capabilities,
    detect_environment,
    look_up_capabilities,
)
from maestroctl.live.engine.command import CommandEngine
from maestroctl.live.engine.endpoint import EndpointEngine
from maestroctl.live.engine.identity import EngineIdentity
from maestroctl.live.engine.managed import ManagedEngine
from maestroctl.live.engine.orphans import end_orphan, find_orphans
from maestroctl.live.engine.vllm import VllmEngine
from maestroctl.live.engine.vllm_args import find_python


async def make_engine(order: EngineOrder) -> Engine:
    """The engine for an order, not yet started.

    Raises:
        EngineError: its environment is missing or broken.
        ConfigError: its version is not supported, or the order contradicts itself.
    """
    if order.model.url is not None or order.engine.kind is EngineKind.ENDPOINT:
        return EndpointEngine(order)
    return await _make_managed(order)


async def find_capabilities(spec: EngineSpec, home: Path | None = None) -> Capabilities:
    """What engines of this kind can do here, before any is started.

    Args:
        spec: how the kind is run.
        home: maestroctl's data folder; None = the default.

    Raises:
        EngineError: its environment is missing or broken.
        ConfigError: its version is not supported.
    """
    if spec.kind not in (EngineKind.VLLM, EngineKind.VLLM_CPU):
        return Capabilities()
    if spec.entrypoint is not None:
        # Another server in vLLM's place has no package to ask.
        newest = ".".join(map(str, NEWEST_TRIED_VLLM))
        return look_up_capabilities(spec.kind, spec.version or newest)
    facts = await detect_environment(engine_envs.find_python(spec, home))
    if not facts.vllm_version:
        raise EngineError(
            f"vLLM is not installed for {facts.python}",
            hint="run `install.sh`, or set `python` under "
            f"`[engine.{spec.name}]` to an environment that has it",
        )
    if spec.version is not None and spec.version != facts.vllm_version:
        raise ConfigError(
            f"`engine.{spec.name}.version` asks for {spec.version}, but {facts.python} has "
            f"{facts.vllm_version}"
        )
    return look_up_capabilities(
        spec.kind, facts.vllm_version, kvcached_version=facts.kvcached_version
    )


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of the engines of an earlier daemon.

    Attributes:
        adopted: running on under this daemon.
        ended: (engine name, reason) of those that were stopped.
    """

    adopted: tuple[Engine, ...]
    ended: tuple[tuple[str, str], ...]


async def recover_engines(
    state_dir: Path,
    make_order: Callable[[EngineIdentity], EngineOrder | None],
    grace_s: float = 10.0,
) -> Recovery:
    """Adopt the healthy engines of an earlier daemon and stop the others.

    Args:
        state_dir: the node's state folder, owned by the caller.
        make_order: the order that this engine would be started with today; None when it is no
            longer configured.
        grace_s: seconds between SIGTERM and SIGKILL for those that are stopped.

    Raises:
        EngineError: processes survived SIGKILL.
    """
    adopted: list[Engine] = []
    ended: list[tuple[str, str]] = []
    for orphan in find_orphans(state_dir):
        identity = orphan.identity
        try:
            engine = await _adopt(identity, make_order, orphan.is_adoptable)
        except (EngineError, ConfigError) as exc:
            await end_orphan(state_dir, orphan, grace_s)
            ended.append((identity.engine, exc.message))
        else:
            adopted.append(engine)
    return Recovery(tuple(adopted), tuple(ended))


async def _adopt(
    identity: EngineIdentity,
    make_order: Callable[[EngineIdentity], EngineOrder | None],
    is_adoptable: bool,
) -> Engine:
    if not is_adoptable:
        raise EngineError("its first process is gone")
    order = make_order(identity)
    if order is None:
        raise EngineError("its model is no longer configured here")
    if environment.spec_hash(order) != identity.spec_hash:
        raise EngineError("it was started with another configuration")
    engine = await _make_managed(order)
    await engine.adopt(identity)
    return engine


async def _make_managed(order: EngineOrder) -> ManagedEngine:
    if order.engine.kind is EngineKind.COMMAND or order.model.command:
        return CommandEngine(order)
    if order.engine.kind not in (EngineKind.VLLM, EngineKind.VLLM_CPU):
        raise ConfigError(f"model '{order.model.name}': its endpoint needs a `url`")
    capabilities = await find_capabilities(order.engine)
    python = find_python(order, str(engine_envs.find_python(order.engine)))
    return VllmEngine(order, capabilities, python)
