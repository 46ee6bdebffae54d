"""What a user declares about machines, groups and the coordinator: `fleet.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from maestroctl.domain.ids import ClusterName, ModelName, NodeName, check_name
from maestroctl.domain.llm import EngineSpec, ModelSpec
from maestroctl.domain.policy import PolicySpec, default_routing


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """``[coordinator]``.

    Attributes:
        state: SQLAlchemy URL of the durable state.
        api_keys_file: one key per line (plain or ``sha256:HEX``); required off loopback.
        max_held: HTTP requests held open at once; past that 429.
        max_body_bytes: request bodies over this get 413 before they are read.
        heartbeat_s: comment heartbeats of a waiting stream.
        history_jobs: finished jobs kept in the store.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    state: str = ""
    api_keys_file: str | None = None
    max_held: int = 4000
    max_body_bytes: int = 32 << 20
    heartbeat_s: float = 10.0
    history_jobs: int = 100_000
    drain_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """``[[cluster]]``; `rtt_s` None = measured."""

    name: ClusterName
    rtt_s: float | None = None

    def __post_init__(self) -> None:
        check_name("cluster", self.name)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """``[[node]]``.

    Attributes:
        host: SSH destination; None = this machine.
        memory_bytes: what models may use on each device; None = measured at start.
        host_memory_bytes: what sleeping weights may use; None = measured at start.
        models: which models this node may run; empty = all.
        threads: CPU threads shared by the engines that are awake; None = all cores.
        linger_s: how long the daemon keeps its engines after its coordinator is gone.
    """

    name: NodeName
    cluster: ClusterName = ClusterName("local")
    host: str | None = None
    memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    models: tuple[ModelName, ...] = ()
    threads: int | None = None
    linger_s: float = 15.0

    def __post_init__(self) -> None:
        check_name("node", self.name)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """``[[group]]``: a name that stands for several models; the router picks one."""

    name: str
    models: tuple[ModelName, ...]

    def __post_init__(self) -> None:
        check_name("group", self.name)
        if not self.models:
            raise ValueError(f"group {self.name!r} has no models")


@dataclass(frozen=True, slots=True)
class ToolsSpec:
    """``[tools]``: patterns ``module:function`` or URLs that workflow files may call."""

    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventLogSpec:
    """``[event_log]``: what the cores were told, for `maestroctl replay`.

    Attributes:
        folder: of the logs; empty = ``events`` in the data folder.
        max_bytes: of one file; then a new one begins.
        keep: older files kept of each log.
    """

    enabled: bool = True
    folder: str = ""
    max_bytes: int = 64 << 20
    keep: int = 3


@dataclass(frozen=True, slots=True)
class PredictorSpec:
    """``[predictor]``.

    Attributes:
        enabled: start the process with the learned models; False = running figures alone.
        artifact: file of a trained model; None = the one that ships.
        digest: what `artifact` must hash to; None = whatever its own manifest says.
        budget_s: how long a stage waits for a prediction at most.
        refit_after_stages: stages observed until the next refit on own history; 0 = never.
    """

    enabled: bool = True
    artifact: str | None = None
    digest: str | None = None
    budget_s: float = 0.05
    refit_after_stages: int = 500


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The whole of a `fleet.toml`, defaults filled in and names checked.

    `policy.routing` is never None: left open, it follows from the number of nodes.
    """

    models: Mapping[ModelName, ModelSpec]
    engines: Mapping[str, EngineSpec]
    nodes: Mapping[NodeName, NodeSpec]
    clusters: Mapping[ClusterName, ClusterSpec]
    groups: Mapping[str, GroupSpec] = field(default_factory=dict)
    coordinator: CoordinatorSpec = field(default_factory=CoordinatorSpec)
    policy: PolicySpec = field(default_factory=PolicySpec)
    tools: ToolsSpec = field(default_factory=ToolsSpec)
    event_log: EventLogSpec = field(default_factory=EventLogSpec)
    predictor: PredictorSpec = field(default_factory=PredictorSpec)

    def __post_init__(self) -> None:
        if self.policy.routing is None:
            policy = replace(self.policy, routing=default_routing(len(self.nodes)))
            object.__setattr__(self, "policy", policy)

    def resolve(self, name: str) -> tuple[ModelName, ...]:
        """Candidate models for what a client calls `name`; empty when unknown.

        A model or alias gives one, a group its models in order, ``auto`` every model.
        """
        if name in self.models:
            return (ModelName(name),)
        if name in self.groups:
            return self.groups[name].models
        for spec in self.models.values():
            if name in spec.aliases:
                return (spec.name,)
        return tuple(self.models) if name == "auto" else ()
