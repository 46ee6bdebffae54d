"""From what a coordinator says a node may run to a node that can run it.

1. devices and their budgets; 2. each model: weights on this machine, what its engine can do, its
profile; 3. engines that an earlier daemon left; 4. the core, told of what was found.

A model that cannot be prepared does not stop the others: it is refused with its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from maestroctl.domain.engine import EngineAbilities, EngineStatus, ResidencyTier
from maestroctl.domain.fleet import NodeSpec
from maestroctl.domain.ids import ModelName, make_engine_id
from maestroctl.domain.llm import EngineKind, EngineSpec, ModelProfile, ModelSpec
from maestroctl.domain.messages import CoordinatorHello
from maestroctl.domain.profile import NONE
from maestroctl.errors import MaestroError
from maestroctl.estimate.profile_from_geometry import (
    estimate_command_profile,
    estimate_endpoint_profile,
)
from maestroctl.live import gpu
from maestroctl.live.engine.base import Engine, EngineOrder
from maestroctl.live.engine.capabilities import Capabilities, Capability
from maestroctl.live.engine.factory import find_capabilities
from maestroctl.live.event_log import open_event_log
from maestroctl.live.models.sources import prepare_model
from maestroctl.live.node.engine_set import EngineSet, ServedModel
from maestroctl.live.node.host import NodeHost, NodeListener
from maestroctl.live.node.memory import first_budgets
from maestroctl.live.profile.device import find_device
from maestroctl.live.profile.lookup import find_costs
from maestroctl.scheduler.events import EngineAdopted
from maestroctl.scheduler.node_core import NodeCore
from maestroctl.telemetry.log_header import LogHeader

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Preparation:
    """What is known of the models of one node."""

    served: dict[ModelName, ServedModel] = field(default_factory=dict)
    profiles: dict[ModelName, ModelProfile] = field(default_factory=dict)
    abilities: dict[ModelName, EngineAbilities] = field(default_factory=dict)
    problems: dict[ModelName, str] = field(default_factory=dict)

    def refuse(self, model: ModelName, exc: Exception) -> None:
        """The model cannot be served here."""
        hint = getattr(exc, "hint", None)
        self.problems[model] = f"{exc}" + (f" ({hint})" if hint else "")
        log.warning("model %s cannot be served: %s", model, self.problems[model])


async def build_host(
    hello: CoordinatorHello,
    state_dir: Path,
    listener: NodeListener,
    on_bug: Callable[[BaseException], None],
) -> NodeHost:
    """Everything from hello to a host whose core knows the engines that are there."""
    gpus = {reading.device: reading.total_bytes for reading in gpu.read_gpus()}
    budgets = first_budgets(hello.node, gpus)
    engines = {spec.name: spec for spec in hello.engines}
    preparation = Preparation()
    threads = _thread_share(hello.node, bool(gpus))
    for model in hello.models:
        await _prepare(model, engines[model.engine], threads, preparation)
    engine_set = EngineSet(state_dir, preparation.served, threads)
    await _attach(engine_set, hello.node, preparation)
    core = NodeCore(
        hello.node,
        hello.policy,
        budgets,
        preparation.profiles,
        {model.name: model for model in hello.models},
        preparation.abilities,
        unavailable=preparation.problems,
    )
    header = LogHeader(
        "node",
        hello.policy,
        name=hello.node.name,
        node=hello.node,
        models=hello.models,
        profiles=tuple(preparation.profiles.values()),
        abilities=preparation.abilities,
        unavailable=preparation.problems,
        budgets=budgets,
        epoch=hello.epoch,
        started_at=time.time(),
    )
    event_log = open_event_log(hello.event_log, state_dir, header)
    host = NodeHost(core, engine_set, listener, on_bug, budgets, event_log)
    for engine, order in await engine_set.recover():
        await _adopt(host, engine, order)
    return host


async def _prepare(
    model: ModelSpec, engine: EngineSpec, threads: int | None, preparation: Preparation
) -> None:
    try:
        folder, profile = await _weights_and_profile(model, engine, threads)
        if profile.origin == NONE:
            abilities = EngineAbilities(managed=False)
        else:
            abilities = abilities_of(await find_capabilities(engine), model)
    except (MaestroError, OSError, ValueError) as exc:
        preparation.refuse(model.name, exc)
        return
    # A small KV pool lowers the length, and an engine refuses to start with a longer one.
    sized = replace(model, max_model_len=profile.max_model_len) if folder is not None else model
    preparation.served[model.name] = ServedModel(sized, engine, folder)
    preparation.profiles[model.name] = profile
    preparation.abilities[model.name] = abilities


async def _attach(engine_set: EngineSet, node: NodeSpec, preparation: Preparation) -> None:
    """Engines that somebody else runs are never started, so they are taken up here."""
    for model in list(preparation.served):
        if not preparation.abilities[model].managed:
            try:
                await engine_set.attach(make_engine_id(model, node.name), model)
            except (MaestroError, OSError, ValueError) as exc:
                preparation.refuse(model, exc)


async def _weights_and_profile(
    model: ModelSpec, engine: EngineSpec, threads: int | None
) -> tuple[Path | None, ModelProfile]:
    if model.url is not None or engine.kind is EngineKind.ENDPOINT:
        return None, estimate_endpoint_profile(model)
    if model.command:
        return None, estimate_command_profile(model)
    assert model.source is not None, "checked by the configuration"
    prepared = await prepare_model(
        model.source,
        engine,
        tensor_parallel=model.tensor_parallel,
        progress=lambda text: log.info("model %s: %s", model.name, text),
    )
    # Costs are of the device that engines of this kind get here, with this node's threads.
    device = find_device(engine.kind, threads)
    return prepared.folder, find_costs(model, engine, prepared.geometry, device, log.info)


def abilities_of(capabilities: Capabilities, model: ModelSpec) -> EngineAbilities:
    """What the scheduler may ask of an engine: its capabilities, or its declared requests."""
    if model.command:
        return EngineAbilities(can_sleep_disk=model.sleep_action is not None)
    return EngineAbilities(
        can_sleep_host=Capability.SLEEP_HOST in capabilities,
        can_sleep_disk=Capability.SLEEP_DISK in capabilities,
        can_suspend=Capability.SUSPEND in capabilities,
        elastic_kv=Capability.ELASTIC_KV in capabilities,
    )


async def _adopt(host: NodeHost, engine: Engine, order: EngineOrder) -> None:
    """Tell the core of an engine that an earlier daemon left; one that cannot say is stopped."""
    try:
        state = await engine.read_state()
        readings = await engine.read_memory()
    except MaestroError as exc:
        log.warning("engine %s does not answer, stopping it: %s", engine.engine_id, exc)
        await host.engines.stop(engine.engine_id)
        return
    if state.is_sleeping:
        suspended = state.num_running + state.num_waiting > 0
        status = EngineStatus.SUSPENDED if suspended else EngineStatus.SLEEPING
    else:
        status = EngineStatus.IDLE
    tier = ResidencyTier.DEVICE if status is EngineStatus.IDLE else _sleeping_tier(engine)
    host.watch(engine.engine_id, order.generation)
    host.post(
        EngineAdopted(
            engine.engine_id,
            order.model.name,
            status,
            tier,
            state.kv_pool_bytes,
            readings,
            order.devices,
        )
    )


def _sleeping_tier(engine: Engine) -> ResidencyTier:
    host = Capability.SLEEP_HOST in engine.capabilities
    return ResidencyTier.HOST if host else ResidencyTier.DISK


def _thread_share(node: NodeSpec, has_gpu: bool) -> int | None:
    """Threads of one engine. On a CPU node engines share the cores, and two that each use all of
    them are ten times slower than two that use half."""
    if has_gpu:
        return node.threads
    return node.threads or gpu.count_cpu_threads()
