"""A whole fleet in simulated time: one coordinator, its nodes, the network between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from maestroctl.domain.engine import EngineAbilities
from maestroctl.domain.fleet import FleetSpec
from maestroctl.domain.ids import HOST_DEVICE, DeviceName, ModelName, NodeName
from maestroctl.domain.llm import ModelProfile
from maestroctl.domain.records import DecisionRecord
from maestroctl.errors import InvariantViolation
from maestroctl.scheduler.coordinator_core import CoordinatorCore
from maestroctl.scheduler.events import CoordinatorEvent
from maestroctl.scheduler.ordering.base import OrderingPolicy
from maestroctl.scheduler.routing.look_ahead import LookAhead
from maestroctl.sim.coordinator_host import SimCoordinator
from maestroctl.sim.jobs import JobPlan, JobRow, StageRow
from maestroctl.sim.loop import EventLoop
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.node_host import SimNode
from maestroctl.sim.prediction import PredictionError, Predictor
from maestroctl.telemetry.log_header import LogHeader
from maestroctl.telemetry.recorder import EventLog

GPU_ABILITIES = EngineAbilities(can_sleep_host=True, can_sleep_disk=True, can_suspend=True)
"""What a vLLM engine of ours can do on a GPU; its KV pool is fixed."""

CPU_ABILITIES = EngineAbilities(can_sleep_disk=True, can_suspend=True)
"""The same on a CPU, where host memory is device memory."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A fleet, what its engines cost, and its network.

    Attributes:
        fleet: nodes with `memory_bytes` and `host_memory_bytes`, models, `[policy]`.
        profiles: cost of each model, the same on every node.
        num_devices: devices per node.
        prefix_cache: engines keep what conversations had before.
        rtts: per node, where it is not the network's.
    """

    fleet: FleetSpec
    profiles: Mapping[ModelName, ModelProfile]
    network: NetworkSpec = NetworkSpec()
    abilities: EngineAbilities = GPU_ABILITIES
    num_devices: int = 1
    max_num_batched_tokens: int = 2048
    prefix_cache: bool = False
    rtts: Mapping[NodeName, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimResult:
    """What came out of a run.

    Attributes:
        stages, jobs: rows in order of their end.
        end_s: simulated time of the last event.
        num_events: events of the kernel.
        busy_s: seconds in which each engine ran iterations.
        num_preempted: recompute preemptions inside engines.
        transitions: engine effects by kind, over all nodes.
    """

    stages: list[StageRow]
    jobs: list[JobRow]
    end_s: float
    num_events: int
    busy_s: Mapping[str, float]
    num_preempted: int
    transitions: Mapping[str, int]


OpenLog = Callable[[LogHeader], EventLog | None]

_ROUNDS = 100
"""Of regular snapshots, after which nothing comes of another one."""
_MAX_QUEUED = 10_000_000
"""A simulation is not to end in rejections."""


def _no_log(_: LogHeader) -> None:
    return None


class World:
    """Built once per run.

    Args:
        error: of the predictions.
        record: told of every decision of every core.
        listen: told of every event the coordinator's core is handed.
        look_ahead, ordering: as for `CoordinatorCore`.
        open_log: makes the event log of each core from its start values; None = none is kept.
    """

    def __init__(
        self,
        spec: WorldSpec,
        error: PredictionError | None = None,
        *,
        record: Callable[[DecisionRecord], None] | None = None,
        listen: Callable[[CoordinatorEvent, float], None] | None = None,
        look_ahead: LookAhead | None = None,
        ordering: OrderingPolicy | None = None,
        open_log: OpenLog = _no_log,
    ) -> None:
        self.loop = EventLoop()
        network = spec.network
        every_s = max(network.snapshot_every_s or 0.0, network.progress_every_s or 0.0)
        self._patience_s = _ROUNDS * every_s + 1.0
        self._logs: list[EventLog] = []
        fleet = spec.fleet
        core = CoordinatorCore(
            fleet, 1, max_queued=_MAX_QUEUED, look_ahead=look_ahead, ordering=ordering
        )
        header = LogHeader(
            "coordinator",
            fleet.policy,
            fleet=fleet,
            max_queued=_MAX_QUEUED,
            unnamed=tuple(
                name
                for name, part in (("look_ahead", look_ahead), ("ordering", ordering))
                if part is not None
            ),
            epoch=1,
        )
        self.nodes: dict[NodeName, SimNode] = {}
        self.coordinator = SimCoordinator(
            self.loop,
            core,
            self.nodes,
            Predictor(error or PredictionError()),
            record,
            listen,
            self._opened(open_log(header)),
            spec.network.prediction_s,
        )
        for name, node in fleet.nodes.items():
            cluster = fleet.clusters.get(node.cluster)
            budgets = _budgets(node.memory_bytes, node.host_memory_bytes, spec.num_devices)
            profiles = {
                m: p for m, p in spec.profiles.items() if not node.models or m in node.models
            }
            abilities = dict.fromkeys(fleet.models, spec.abilities)
            header = LogHeader(
                "node",
                fleet.policy,
                name=name,
                node=node,
                models=tuple(fleet.models.values()),
                profiles=tuple(profiles.values()),
                abilities=abilities,
                budgets=budgets,
                epoch=1,
            )
            self.nodes[name] = SimNode(
                self.loop,
                node,
                fleet.policy,
                budgets,
                profiles,
                fleet.models,
                abilities,
                spec.network,
                rtt_s=spec.rtts.get(name, cluster.rtt_s if cluster else None),
                max_num_batched_tokens=spec.max_num_batched_tokens,
                prefix_cache=spec.prefix_cache,
                record=record,
                log=self._opened(open_log(header)),
            )
        for sim_node in self.nodes.values():
            sim_node.connect(self.coordinator)

    def run(self, plans: Sequence[JobPlan], *, limit_s: float = float("inf")) -> SimResult:
        """Play the jobs to their end, or to `limit_s`.

        Raises:
            InvariantViolation: nothing is left to happen and some job is not over.
        """
        runner = self.coordinator.runner
        runner.schedule(sorted(plans, key=lambda plan: (plan.arrival_s, plan.job_id)))
        try:
            if plans:  # it stops with the last job that ends
                self.loop.run(limit_s, self._patience_s)
        finally:
            for log in self._logs:
                log.close()
        if runner.num_open and self.loop.now_s < limit_s and limit_s == float("inf"):
            raise InvariantViolation(f"{runner.num_open} jobs wait for ever")
        busy: dict[str, float] = {}
        transitions: dict[str, int] = {}
        num_preempted = 0
        for node in self.nodes.values():
            busy.update(node.busy_s())
            num_preempted += node.num_preempted()
            for kind, count in node.num_transitions.items():
                transitions[kind] = transitions.get(kind, 0) + count
        return SimResult(
            self.coordinator.stages,
            runner.ended,
            self.loop.now_s,
            self.loop.num_events,
            busy,
            num_preempted,
            transitions,
        )

    def _opened(self, log: EventLog | None) -> EventLog | None:
        if log is not None:
            self._logs.append(log)
        return log


def _budgets(
    memory_bytes: int | None, host_bytes: int | None, num_devices: int
) -> dict[DeviceName, int]:
    each = memory_bytes if memory_bytes is not None else 1 << 60
    budgets = {DeviceName(f"cuda:{number}"): each for number in range(num_devices)}
    budgets[HOST_DEVICE] = host_bytes if host_bytes is not None else 1 << 60
    return budgets
