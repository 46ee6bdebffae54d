"""One TOML file that declares a whole simulation: fleet, costs, network, workload, errors.

    [run]        jobs, warmup, seed, without (trace sources to leave out)
    [policy]     the keys of a fleet file
    [[model]]    name and a profile file, or geometry; each cost may be replaced
    [[node]]     name, count, memory, host_memory, models, rtt
    [network]    rtt, send_soon, snapshot_every, progress_every, prediction
    [arrivals]   kind = "poisson" | "bursty" | "trace", rate, cv, trace
    [[class]]    service_class, share, apps, deadline_factor, models, [class.role_models]
    [prediction] error = "none" | "lognormal" | "residuals" | "prior", rho, residuals

docs/simulator.md has the reference. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maestroctl.config.file_kind import FileKind, refuse_other_kind
from maestroctl.config.kinds import did_you_mean, show_value
from maestroctl.config.profile import load_profile
from maestroctl.config.profile_store import PROFILES
from maestroctl.config.shipped import shipped_dir
from maestroctl.config.source import parse_toml, read_text
from maestroctl.domain.fleet import ClusterSpec, FleetSpec, NodeSpec
from maestroctl.domain.ids import ClusterName, ModelName, NodeName
from maestroctl.domain.llm import IterationCost, KvGeometry, ModelProfile, ModelSpec
from maestroctl.domain.policy import PolicySpec
from maestroctl.domain.stage import ServiceClass
from maestroctl.domain.units import parse_bytes, parse_seconds
from maestroctl.errors import ConfigError
from maestroctl.estimate.profile_from_geometry import estimate_profile, size_profile
from maestroctl.sim.network import NetworkSpec
from maestroctl.sim.prediction import PredictionError
from maestroctl.sim.traces import load_arrivals, load_jobs
from maestroctl.sim.workload import ArrivalSpec, ClassSpec, JobSource, WorkloadSpec
from maestroctl.sim.world import CPU_ABILITIES, GPU_ABILITIES, WorldSpec


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """Everything a run needs."""

    world: WorldSpec
    workload: WorkloadSpec
    error: PredictionError
    source: JobSource


def load_simulation(path: Path, data: Path | None = None) -> SimulationSpec:
    """Read a simulation file.

    Args:
        data: folder of recorded traces; None = the fitted generator.

    Raises:
        ConfigError: names the key and what was expected.
    """
    document = parse_toml(read_text(path), str(path))
    refuse_other_kind(document, FileKind.SIMULATION, str(path))
    return make_simulation(document, str(path), data)


def make_simulation(
    values: Mapping[str, Any], file: str = "", data: Path | None = None
) -> SimulationSpec:
    """The same from parsed values."""
    root = _Reader(values, file, "")
    profiles: dict[ModelName, ModelProfile] = {}
    models: dict[ModelName, ModelSpec] = {}
    batched: int | None = None
    abilities = GPU_ABILITIES
    for table in root.tables("model"):
        found = _model(table)
        profiles[found.model.name], models[found.model.name] = found.costs, found.model
        batched = batched or found.max_batched_tokens or None
        if found.device_kind == "cpu":
            abilities = CPU_ABILITIES
    if not models:
        raise ConfigError("a simulation needs at least one [[model]]", file=file, key="model")
    nodes, rtts = _nodes(root)
    cluster = ClusterName("local")
    fleet = FleetSpec(models, {}, nodes, {cluster: ClusterSpec(cluster)}, policy=_policy(root))
    run = root.table("run")
    source = JobSource(load_jobs(data, without=run.names("without")) if data is not None else ())
    workload = WorkloadSpec(
        jobs=run.integer("jobs", 1000),
        warmup=run.integer("warmup", 0),
        seed=run.integer("seed", 1),
        max_output=run.integer("max_output", 4096),
        arrivals=_arrivals(root.table("arrivals"), data),
        classes=tuple(_class(table, models) for table in root.tables("class"))
        or (ClassSpec(ServiceClass.INTERACTIVE, 1.0),),
    )
    batched = run.integer("max_num_batched_tokens", batched or 2048)
    prefix_cache = run.flag("prefix_cache")
    run.finish()
    spec = SimulationSpec(
        WorldSpec(
            fleet,
            profiles,
            _network(root),
            abilities,
            max_num_batched_tokens=batched,
            prefix_cache=prefix_cache,
            rtts=rtts,
        ),
        workload,
        _error(root.table("prediction")),
        source,
    )
    root.finish()
    return spec


@dataclass(frozen=True, slots=True)
class _Model:
    """One ``[[model]]``; `max_batched_tokens` 0 = not said."""

    model: ModelSpec
    costs: ModelProfile
    device_kind: str
    max_batched_tokens: int = 0


def _model(table: _Reader) -> _Model:
    name = ModelName(table.text("name"))
    found = _profiled_model(table, name) if "profile" in table.values else _made_up(table, name)
    costs, cost = found.costs, found.costs.iteration
    cost = IterationCost(
        table.seconds("c0", cost.c0_s),
        table.seconds("c1", cost.c1_s),
        table.seconds("c2", cost.c2_s),
        table.seconds("cp", cost.cp_s),
        table.number("gamma", cost.gamma),
    )
    costs = dataclasses.replace(
        costs,
        iteration=cost,
        cold_start_s=table.seconds("cold_start", costs.cold_start_s),
        wake_s=table.seconds("wake", costs.wake_s),
        sleep_s=table.seconds("sleep", costs.sleep_s),
    )
    table.finish()
    return dataclasses.replace(found, costs=costs)


def _profiled_model(table: _Reader, name: ModelName) -> _Model:
    """Costs of a profile file, with the lengths and the pool that the simulation asks for."""
    text = table.text("profile")
    record = load_profile(_profile_path(text, table.file))
    for key in ("weights", "layers", "kv_heads", "head_dim", "device"):
        if key in table.values:
            raise table.mistake(key, table.values[key], "nothing, since the profile says it")
    model = ModelSpec(
        name,
        max_model_len=table.integer("max_model_len", record.costs.max_model_len),
        max_batch=table.integer("max_batch", record.costs.max_batch),
        kv_cache_bytes=table.size("kv_cache", None),
    )
    most = record.costs.max_batch if record.saturated else None
    costs = size_profile(record.costs, record.geometry, model, most_batch=most)
    batched = record.engine.max_batched_tokens
    return _Model(model, costs, record.device_kind, batched)


def _profile_path(text: str, file: str) -> Path:
    """A file, relative to the simulation's; without ``.toml``, one that comes with maestroctl."""
    if text.endswith(".toml"):
        return Path(file).parent / Path(text).expanduser()
    return shipped_dir(PROFILES) / f"{text}.toml"


def _made_up(table: _Reader, name: ModelName) -> _Model:
    """Costs by arithmetic from the geometry."""
    length = table.integer("max_model_len", 8192)
    geometry = KvGeometry(
        table.integer("layers", 36), table.integer("kv_heads", 8), table.integer("head_dim", 128)
    )
    model = ModelSpec(
        name,
        max_model_len=length,
        max_batch=table.integer("max_batch", 16),
        kv_cache_bytes=table.size("kv_cache", None),
    )
    kind = table.text("device", "cuda")
    if kind not in ("cuda", "cpu"):
        raise table.mistake("device", kind, "'cuda' or 'cpu'")
    weights = table.size("weights", None)
    if weights is None:
        raise table.mistake("weights", None, "the size of the weights")
    costs = estimate_profile(model, geometry, weights, "cpu" if kind == "cpu" else "cuda", length)
    return _Model(model, costs, kind)


def _nodes(root: _Reader) -> tuple[dict[NodeName, NodeSpec], dict[NodeName, float]]:
    nodes: dict[NodeName, NodeSpec] = {}
    rtts: dict[NodeName, float] = {}
    for table in root.tables("node"):
        base = table.text("name", "n")
        count = table.integer("count", 1)
        rtt_s = table.seconds("rtt", None)
        memory, host = table.size("memory", 40 << 30), table.size("host_memory", 128 << 30)
        models = tuple(ModelName(name) for name in table.names("models"))
        for number in range(1, count + 1):
            name = NodeName(base if count == 1 else f"{base}{number}")
            nodes[name] = NodeSpec(name, memory_bytes=memory, host_memory_bytes=host, models=models)
            if rtt_s is not None:
                rtts[name] = rtt_s
        table.finish()
    if not nodes:
        nodes[NodeName("n1")] = NodeSpec(
            NodeName("n1"), memory_bytes=40 << 30, host_memory_bytes=128 << 30
        )
    return nodes, rtts


def _policy(root: _Reader) -> PolicySpec:
    table = root.table("policy")
    known = {field.name: field for field in dataclasses.fields(PolicySpec)}
    fields: dict[str, Any] = {}
    for name, field in known.items():
        if name in table.values:
            of_text = isinstance(field.default, str)
            fields[name] = table.text(name) if of_text else table.number(name, 0.0)
    table.finish()
    return PolicySpec(**fields)


def _network(root: _Reader) -> NetworkSpec:
    table = root.table("network")
    default = NetworkSpec()
    spec = NetworkSpec(
        rtt_s=table.seconds("rtt", default.rtt_s),
        send_soon_s=table.seconds("send_soon", default.send_soon_s),
        snapshot_every_s=table.seconds("snapshot_every", default.snapshot_every_s),
        progress_every_s=table.seconds("progress_every", default.progress_every_s),
        prediction_s=table.seconds("prediction", default.prediction_s),
    )
    table.finish()
    return spec


def _arrivals(table: _Reader, data: Path | None) -> ArrivalSpec:
    kind = table.text("kind", "poisson")
    recorded: tuple[float, ...] = ()
    trace = table.text("trace", "")
    if kind == "trace":
        if data is None or not trace:
            raise ConfigError(
                "recorded arrivals need `trace` and a data folder",
                file=table.file,
                key="arrivals.trace",
                hint="pass --data DIR",
            )
        recorded = tuple(load_arrivals(data, trace))
    spec = ArrivalSpec(kind, table.number("rate", 1.0), table.number("cv", 3.0), recorded)
    table.finish()
    return spec


def _class(table: _Reader, models: Collection[ModelName]) -> ClassSpec:
    name = table.text("service_class", "interactive")
    if name not in {c.value for c in ServiceClass}:
        raise table.mistake("service_class", name, "'interactive' or 'batch'")
    by_role = table.table("role_models")
    role_models = {role: tuple(map(ModelName, by_role.names(role))) for role in by_role.values}
    by_role.finish()
    spec = ClassSpec(
        ServiceClass(name),
        share=table.number("share", 1.0),
        apps=table.names("apps"),
        deadline_factor=table.number("deadline_factor", None),
        deadline_s=table.seconds("deadline", 0.0),
        tool_s=table.seconds("tool_time", 0.0),
        models=tuple(ModelName(model) for model in table.names("models")),
        role_models=role_models,
    )
    for model in [*spec.models, *(m for choice in role_models.values() for m in choice)]:
        if model not in models:
            raise table.mistake("models", model, f"one of {', '.join(models)}")
    table.finish()
    return spec


def _error(table: _Reader) -> PredictionError:
    spec = PredictionError(
        table.text("error", "none"),
        table.number("rho", 0.0),
        tuple(float(value) for value in table.values.get("residuals", ())),
    )
    table.read.add("residuals")
    table.finish()
    return spec


class _Reader:
    """One table: typed values by key, and what nobody read."""

    def __init__(self, values: Any, file: str, path: str) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError("a table was expected", file=file, key=path)
        self.values: Mapping[str, Any] = values
        self.file = file
        self.path = path
        self.read: set[str] = set()

    def finish(self) -> None:
        """Refuse keys that nobody read."""
        for name in self.values:
            if name not in self.read:
                raise ConfigError(
                    f"unknown key {name!r}",
                    file=self.file,
                    key=self._key(name),
                    hint=did_you_mean(name, sorted(self.read)),
                )

    def mistake(self, name: str, found: Any, expected: str) -> ConfigError:
        """A value that is not what it should be; None = it is missing."""
        shown = "nothing" if found is None else show_value(found)
        return ConfigError(
            f"expected {expected}, found {shown}", file=self.file, key=self._key(name)
        )

    def table(self, name: str) -> _Reader:
        """A table inside; empty when absent."""
        return _Reader(self._take(name, {}), self.file, self._key(name))

    def tables(self, name: str) -> list[_Reader]:
        """The tables under ``[[name]]``."""
        found = self._take(name, [])
        if not isinstance(found, list):
            raise self.mistake(name, found, f"tables, each under [[{name}]]")
        return [_Reader(v, self.file, f"{self._key(name)}[{i}]") for i, v in enumerate(found)]

    def text(self, name: str, default: str | None = None) -> str:
        """A text; required without a default."""
        found = self._take(name, default)
        if not isinstance(found, str):
            raise self.mistake(name, found, "a text")
        return found

    def names(self, name: str) -> tuple[str, ...]:
        """A list of texts, or one."""
        found = self._take(name, ())
        if isinstance(found, str):
            return (found,)
        if not isinstance(found, list | tuple) or not all(isinstance(v, str) for v in found):
            raise self.mistake(name, found, "a list of texts")
        return tuple(found)

    def integer(self, name: str, default: int) -> int:
        """A whole number, at least 0."""
        found = self._take(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise self.mistake(name, found, "a whole number")
        return found

    def flag(self, name: str) -> bool:
        """True or false; false when absent."""
        found = self._take(name, False)
        if not isinstance(found, bool):
            raise self.mistake(name, found, "true or false")
        return found

    def number(self, name: str, default: Any) -> Any:
        """A number, at least 0."""
        found = self._take(name, default)
        if found is default:
            return default
        if not isinstance(found, int | float) or isinstance(found, bool) or found < 0:
            raise self.mistake(name, found, "a number")
        return float(found)

    def seconds(self, name: str, default: Any) -> Any:
        """A time: seconds, or text with a unit."""
        return self._parsed(name, default, parse_seconds, "a time")

    def size(self, name: str, default: Any) -> Any:
        """Bytes: a whole number, or text with a unit."""
        return self._parsed(name, default, parse_bytes, "a size")

    def _parsed(self, name: str, default: Any, parse: Any, what: str) -> Any:
        found = self._take(name, default)
        if found is default:
            return default
        try:
            return parse(found)
        except (TypeError, ValueError) as exc:
            raise self.mistake(name, found, f"{what} ({exc})") from exc

    def _take(self, name: str, default: Any) -> Any:
        self.read.add(name)
        return self.values.get(name, default)

    def _key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
